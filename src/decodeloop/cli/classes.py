"""The shipped classifier of request classes."""

from __future__ import annotations

from importlib.resources import files

from decodeloop.policy.classifier import Classifier

WEIGHTS = "data/classes.npz"


def open_classifier() -> Classifier:
    return Classifier.from_bytes(files("decodeloop.policy").joinpath(WEIGHTS).read_bytes())
