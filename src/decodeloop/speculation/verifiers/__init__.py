"""What decides which drafted tokens stay. Built as `cls()`."""

from __future__ import annotations

from decodeloop.registry import Registry
from decodeloop.speculation import Verifier

__all__ = ["verifiers"]

verifiers = Registry[Verifier](
    "verifiers",
    {
        "coupled": "decodeloop.speculation.verifiers.coupled:CoupledVerifier",
        "rejection": "decodeloop.speculation.verifiers.rejection:RejectionVerifier",
        "block": "decodeloop.speculation.verifiers.block:BlockVerifier",
    },
)
