"""Runs a model: from requests to decode steps and back."""
