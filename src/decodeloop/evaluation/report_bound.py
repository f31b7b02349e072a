"""The report's section on the gap to the bound: what a clairvoyant would win, and where the rest is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decodeloop.evaluation.bound import Bounded
from decodeloop.evaluation.report_words import Section, Table, load_name, percent

GOAL = 0.15  # of regret


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """drafter: whose drafts were asked for at every position of so many answers. times_from: how far step times are to
    be trusted, in words."""

    policy: str
    drafter: str
    answers: int
    times_from: str
    cells: Sequence[Bounded]


def bound_section(found: Bound) -> Section:
    rows = tuple(
        (
            each.name,
            load_name(each.load, closed=True),
            *(f"{rate:.1f}" for rate in (each.gap.plain, each.gap.policy, each.gap.informed, each.gap.oracle)),
            f"{each.gap.oracle / each.gap.plain:.2f}x",
            percent(each.gap.information),
            percent(each.gap.regret),
        )
        for each in found.cells
    )
    within = sum(each.gap.regret <= GOAL for each in found.cells)
    best = max(found.cells, key=lambda each: each.gap.oracle / each.gap.plain)
    heads = (
        "class",
        "load",
        "plain",
        found.policy,
        "best causal",
        "oracle",
        "oracle over plain",
        "information",
        "regret",
    )
    return Section(
        title="The gap to the bound",
        lead=f"What could be won at best: the {found.drafter} drafter was asked at every position of {found.answers} "
        "answers of this run, and the answers served again in simulation (mode M), output tokens a second. An oracle "
        "that pays for its drafts and knows which tokens will be accepted would decode at most "
        f"{best.gap.oracle / best.gap.plain:.2f}x as fast as plain ({best.name}).",
        tables=(Table(heads, rows),),
        notes=(
            "Information: the share of the oracle's rate that nobody can have beforehand. Regret: the share of the "
            "best causal rule's rate that the policy leaves, learning as it goes; below 0 where it does better. "
            f"Within {percent(GOAL, 0)} in {within} of {len(found.cells)} cells.",
            f"Step times: {found.times_from}. All rules share them.",
        ),
    )
