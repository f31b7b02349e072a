"""What became of drafts, over many requests: four numbers with four names, never one in place of another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from decodeloop.evaluation.results import Drafting, RequestResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Steps without a draft are left out of all but `plain_share`. None: the server doesn't tell what it needs.

    mal: mean acceptance length, emitted per draft, the bonus counted; over drafts and as a mean over requests.
    acceptance_rate: accepted / verified. draft_yield: accepted / drafted. survival[k]: share of drafts of which the
    first k + 1 tokens were all accepted (a draft that was shorter has not). conditional[k]: those among the drafts of
    which the first k were.
    """

    requests: int
    drafts: int | None
    verified: int
    accepted: int
    drafted: int | None
    mal: float | None
    mal_over_requests: float | None
    acceptance_rate: float
    draft_yield: float | None
    plain_share: float | None  # of decode steps
    survival: tuple[float, ...] = ()
    conditional: tuple[float, ...] = ()


def acceptance(requests: Iterable[RequestResult]) -> Acceptance | None:
    """None where nothing was verified."""
    told = [r.drafting for r in requests if r.drafting is not None and r.error is None]
    drafted = [d for d in told if d.verified > 0]
    if not drafted:
        return None
    verified, accepted = sum(d.verified for d in drafted), sum(d.accepted for d in drafted)
    drafts, proposed, steps = _sum(drafted, "drafts"), _sum(drafted, "drafted"), _sum(told, "steps")
    survival, conditional = _positions(drafted, drafts or 0)
    return Acceptance(
        requests=len(drafted),
        drafts=drafts,
        verified=verified,
        accepted=accepted,
        drafted=proposed,
        mal=1.0 + accepted / drafts if drafts else None,
        mal_over_requests=_mean_length(drafted),
        acceptance_rate=accepted / verified,
        draft_yield=accepted / proposed if proposed else None,
        plain_share=1.0 - drafts / steps if steps and drafts else None,
        survival=survival,
        conditional=conditional,
    )


def length(mal: float | None) -> str:
    return "not told" if mal is None else f"{mal:.2f}"


def _mean_length(rows: list[Drafting]) -> float | None:
    lengths = [1.0 + row.accepted / row.drafts for row in rows if row.drafts]
    return sum(lengths) / len(rows) if len(lengths) == len(rows) else None


def _sum(rows: list[Drafting], name: str) -> int | None:
    values = [getattr(row, name) for row in rows]
    return None if None in values else sum(values)


def _positions(rows: list[Drafting], drafts: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(survival, conditional), empty where a server told no histogram."""
    if not drafts or not all(row.accepted_histogram for row in rows):
        return (), ()
    counts = [sum(column) for column in zip_longest(*(row.accepted_histogram for row in rows), fillvalue=0)]
    reached = [sum(counts[k:]) for k in range(len(counts) + 1)]
    last = max((k for k, count in enumerate(reached) if count), default=0)
    survival = tuple(reached[k] / drafts for k in range(1, last + 1))
    return survival, tuple(reached[k] / reached[k - 1] for k in range(1, last + 1))
