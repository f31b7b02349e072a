"""Who used what: sums of the ledger by organization, agent, class or task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from decodeloop.governance.ledger import LedgerRow

__all__ = ["GROUPINGS", "Sums", "showback"]

GROUPINGS: Mapping[str, Callable[[LedgerRow], str]] = {
    "organization": lambda row: row.identity.organization,
    "user": lambda row: f"{row.identity.organization}/{row.identity.user}",
    "agent": lambda row: f"{row.identity.organization}/{row.identity.user}/{row.identity.agent}",
    "capability": lambda row: row.identity.capability,
    "class": lambda row: row.request_class,
    "task": lambda row: row.task or row.trace,
    "model": lambda row: row.model,
    "pool": lambda row: row.pool,
}


@dataclass(slots=True)
class Sums:
    """Money in nanos."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    drafted: int = 0
    accepted: int = 0
    billed: int = 0
    cost: int = 0

    def add(self, row: LedgerRow) -> None:
        self.requests += row.entry == 0
        self.prompt += row.usage.prompt
        self.cached += row.usage.cached
        self.completion += row.usage.completion
        self.drafted += row.usage.drafted
        self.accepted += row.usage.accepted
        self.billed += row.billed
        self.cost += row.cost

    @property
    def margin(self) -> int:
        return self.billed - self.cost


def showback(rows: Iterable[LedgerRow], by: str) -> dict[str, Sums]:
    """Sums by name, dearest first. Raises ValueError for a grouping that isn't there."""
    if by not in GROUPINGS:
        raise ValueError(f"no grouping {by!r}; choose from {', '.join(GROUPINGS)}")
    sums: defaultdict[str, Sums] = defaultdict(Sums)
    for row in rows:
        sums[GROUPINGS[by](row)].add(row)
    return dict(sorted(sums.items(), key=lambda item: (-item[1].billed, item[0])))
