"""What a target says of itself: a configuration that names a lossy acceptance rule needs no measurement."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from decodeloop.evaluation.lossless.outcome import Check, Control, Power

LOSSY = {
    "vLLM's rejection_sample_method": re.compile(r"rejection_sample_method\W{1,6}(synthetic|fly)"),
    "typical acceptance": re.compile(r"(typical_acceptance_sampler)"),
    "SGLang's acceptance thresholds": re.compile(
        r"speculative_accept_threshold_(?:single|acc)\W{1,6}(0?\.\d+|0\b)"  # 1.0 is exact
    ),
}
CONTROLS = {
    "rejection_sample_method synthetic": "{'method': 'ngram', 'rejection_sample_method': 'synthetic'}",
    "an acceptance threshold of 0.9": '{"speculative_accept_threshold_single": 0.9}',
}


def check_declaration(configuration: str, flags: Mapping[str, Any]) -> Check:
    """configuration: whatever the target tells. flags: of the regime, observed or declared."""
    text = configuration + "\n" + repr(dict(flags))
    found = _lossy(text)
    controls = tuple(Control(name, bool(_lossy(bad)), "; ".join(_lossy(bad))) for name, bad in CONTROLS.items())
    return Check(
        name="declaration",
        claim="its configuration names no lossy acceptance rule",
        passed=not found,
        found="; ".join(found) or f"none among {len(text)} characters of configuration",
        measured={"characters": len(text)},
        power=(
            Power(
                deviation="lossy rules known by name, in what the target tells",
                size=float(len(LOSSY)),
                probability=1.0,
                samples=1,
                false_failure_rate=0.0,
            ),
        ),
        controls=controls,
    )


def _lossy(text: str) -> list[str]:
    return [f"{name}: {found[1]}" for name, pattern in LOSSY.items() if (found := pattern.search(text))]
