"""Checks that every component must pass: the project's own and those of other packages."""

from decodeloop.evaluation.lossless.enumeration import (
    Branch,
    branches,
    continued,
    law,
    random_table,
    target_law,
    total_variation,
)
from decodeloop.evaluation.lossless.tables import EXACT, TableRows, point_draft, sampled_draft
from decodeloop.testing.drafter import check_drafter, drafter_setup
from decodeloop.testing.policy import check_policy
from decodeloop.testing.runner import Run, check_runner, pack
from decodeloop.testing.verifier import check_verifier

__all__ = [
    "EXACT",
    "Branch",
    "Run",
    "TableRows",
    "branches",
    "check_drafter",
    "check_policy",
    "check_runner",
    "check_verifier",
    "continued",
    "drafter_setup",
    "law",
    "pack",
    "point_draft",
    "random_table",
    "sampled_draft",
    "target_law",
    "total_variation",
]
