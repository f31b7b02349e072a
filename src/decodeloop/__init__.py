"""Adaptive, lossless speculative decoding: measured, proved, accounted."""

__version__ = "0.1.0"
