"""Checks that every component must pass: the project's own and those of other packages."""

from decodeloop.testing.drafter import check_drafter, drafter_setup
from decodeloop.testing.policy import check_policy

__all__ = ["check_drafter", "check_policy", "drafter_setup"]
