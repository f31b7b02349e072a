"""Takes personal data and secrets out of captured texts, keeping what acceptance depends on: what repeats.

The same value becomes the same placeholder throughout a workload, so a name that is copied from prompt to answer still
is. Patterns find what has a form (addresses, numbers, keys); names of people have none: add patterns for them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from decodeloop.evaluation.workloads.workload import Workload, WorkRequest

PATTERNS: Mapping[str, str] = {
    "key": r"\b(?:sk|pk|rk|ghp|gho|xox[abp]|glpat|hf|AKIA)[-_A-Za-z0-9]{12,}\b|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
    "secret": r"(?<=://)[^\s/:@]+:[^\s/@]+(?=@)|(?i:(?<=bearer )[\w.~+/=-]{12,})",
    "email": r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}",
    "iban": r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b",
    "card": r"\b(?:\d[ -]?){12,18}\d\b",
    "ip": r"\b(?:\d{1,3}\.){3}\d{1,3}\b",
    "phone": r"(?<![\w.])(?!\d{4}-\d\d-\d\d(?!\d))(?:\+\d{1,3}[ /-]?)?(?:\(\d{1,4}\)[ /-]?)?"
    r"\d{2,4}(?:[ /-]\d{2,4}){2,4}(?![\w.])",
}


@dataclass(slots=True)
class Redactor:
    """patterns: kind -> regular expression, applied in order. Placeholders read `<email-1>`."""

    patterns: Mapping[str, str] = field(default_factory=lambda: dict(PATTERNS))
    counts: Counter[str] = field(default_factory=Counter)  # kind -> replacements made
    _known: dict[str, dict[str, str]] = field(default_factory=dict)
    _compiled: dict[str, re.Pattern[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ValueError for a pattern that is none."""
        for kind, pattern in self.patterns.items():
            try:
                self._compiled[kind] = re.compile(pattern)
            except re.error as error:
                raise ValueError(f"redaction of {kind}: {pattern!r} is no regular expression ({error})") from error

    def text(self, text: str) -> str:
        for kind, pattern in self._compiled.items():
            text = pattern.sub(lambda found, kind=kind: self._placeholder(kind, found[0]), text)  # type: ignore[misc]
        return text

    def value(self, value: Any) -> Any:
        """A JSON value with every text in it cleaned."""
        return self._any(value)

    def workload(self, workload: Workload) -> Workload:
        """Every text of every request, tools and schemas included; sessions become numbers."""
        return replace(workload, requests=tuple(self._request(request) for request in workload.requests))

    def _request(self, request: WorkRequest) -> WorkRequest:
        return replace(
            request,
            prompt=None if request.prompt is None else self.text(request.prompt),
            messages=tuple(self._any(message) for message in request.messages),
            params=self._any(request.params),
            session=None if request.session is None else self._placeholder("session", request.session),
        )

    def _any(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self._any(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._any(each) for each in value]
        return value

    def _placeholder(self, kind: str, value: str) -> str:
        if kind == "card" and not luhn(value):
            return value
        self.counts[kind] += 1
        own = self._known.setdefault(kind, {})
        return own.setdefault(value, f"<{kind}-{len(own) + 1}>")


def luhn(number: str) -> bool:
    """Whether the digits carry a payment card's check digit."""
    digits = [int(c) for c in reversed(number) if c.isdigit()]
    doubled = [sum(divmod(2 * d, 10)) for d in digits[1::2]]
    return (sum(digits[0::2]) + sum(doubled)) % 10 == 0
