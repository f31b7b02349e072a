"""The gap to the bound, cell by cell: texts of a class, or their mix, at a load (see `oracle`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decodeloop.evaluation.acceptance import Texts
from decodeloop.evaluation.counterfactual import Text, histories, right
from decodeloop.evaluation.foresight import Foresight
from decodeloop.evaluation.oracle import Cell, Gap, cell_of, gap
from decodeloop.evaluation.policy_rule import PolicyRule
from decodeloop.evaluation.rules import Off, free_ms
from decodeloop.policy import PolicySettings, policies
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.options import AdaptiveOptions
from decodeloop.speculation import Drafter
from decodeloop.types import RequestClass

MIXED = "mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A policy as it is configured. seconds: simulated of each cell, after a ramp that is as long."""

    policy: str
    max_draft_len: int
    draft_len: int = 4
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 20.0

    @property
    def interference(self) -> float | None:
        """What the best causal rule is held to: as much as the policy is, or policies that don't say."""
        interference: float | None = self.options.get("interference", AdaptiveOptions().interference)
        return interference


@dataclass(frozen=True, slots=True)
class Bounded:
    """A cell's gap. name: of a class, or `mixed`."""

    name: str
    load: int
    gap: Gap


def best_drafter(drafters: Mapping[str, Drafter], texts: Sequence[Text], draft_len: int) -> str:
    """The one that has most tokens right on these texts. drafters: fresh ones; they have seen the texts afterwards."""
    scores = {name: right(histories(own, texts, draft_len=draft_len)) for name, own in drafters.items()}
    return max(scores, key=lambda name: scores[name])


def bounds(
    texts: Sequence[Text], drafter: Drafter, cost: CostSurface, judged: Judged, cells: Sequence[tuple[str, int]]
) -> Iterator[Bounded]:
    """The gap of each (class or `mixed`, load). cost: measured step times, which all rules share; it isn't changed.

    Raises ValueError where `texts` has none of a class.
    """
    drafts = histories(drafter, texts, draft_len=judged.max_draft_len)
    arrivals = [text.arrival(number) for number, text in enumerate(texts)]
    foresight, known = Foresight(drafts), Texts(drafts)
    for name, load in cells:
        own = cell_of(arrivals, name)
        if not own:
            raise ValueError(f"no text of class {name!r}")
        cell = Cell(known, own, cost, load, judged.seconds, judged.seconds)
        found = gap(
            cell,
            plain=Off,
            policy=_playing(judged, cost),
            foresight=foresight,
            interference=judged.interference,
            drafting_ms=free_ms(cost, load),
        )
        yield Bounded(name, load, found)


def _playing(judged: Judged, cost: CostSurface) -> Callable[[], PolicyRule]:
    """A fresh policy, with a surface of its own to refine."""
    settings = PolicySettings(judged.max_draft_len, judged.draft_len, options=judged.options)

    def made() -> PolicyRule:
        own = policies.load(judged.policy)(settings, CostSurface.from_json(cost.to_json()))
        return PolicyRule(own, cost, max_draft_len=judged.max_draft_len)

    return made


def classes_of(texts: Sequence[Text]) -> list[RequestClass]:
    return list(dict.fromkeys(text.request_class for text in texts))
