"""What the cost surface says of a fixed draft length, to be set beside what was measured (mode M).

Mean field: every step has the load's requests, of which the measured share has a draft of the measured mean length.
"""

from __future__ import annotations

from collections.abc import Mapping

from decodeloop.evaluation.card_measures import acceptance
from decodeloop.evaluation.report_tokens import Predicted
from decodeloop.evaluation.results import LoadKind, Results
from decodeloop.types import CostModel

LABEL = "step times measured at start, acceptance as measured in this run"


def predictions(results: Results, costs: Mapping[str, CostModel]) -> list[Predicted]:
    """costs: arm -> step times of its engine. For arms of a fixed length in a closed loop with free drafters; none
    otherwise."""
    if results.plan.load is not LoadKind.CLOSED:
        return []
    found = []
    for arm in results.plan.arms:
        if arm.role != "static" or arm.label not in costs:
            continue
        for level in results.plan.levels:
            speedup = _speedup(results, arm.label, level, costs[arm.label])
            if speedup is not None:
                found.append(Predicted(arm.label, level, speedup, LABEL))
    return found


def _speedup(results: Results, arm: str, level: float, cost: CostModel) -> float | None:
    steady = [r for r in results.steady(arm=arm, level=level) if r.error is None]
    found = acceptance(steady)
    if found is None or found.no_draft_share is None or not found.drafts or not results.complete_blocks(level):
        return None
    rows, drafted = round(level), 1.0 - found.no_draft_share
    context = sum((r.prompt_tokens or 0) + r.completion_tokens / 2 for r in steady) / len(steady)
    cached = round(rows * context)
    verified = rows * (1.0 + drafted * found.verified / found.drafts)
    emitted = 1.0 + drafted * found.accepted / found.drafts
    return emitted * cost.step_ms(rows, cached, rows) / _between(cost, verified, cached, rows)


def _between(cost: CostModel, tokens: float, context: int, rows: int) -> float:
    """Step time at a number of tokens that is no whole one."""
    low = int(tokens)
    share = tokens - low
    return (1.0 - share) * cost.step_ms(low, context, rows) + share * cost.step_ms(low + 1, context, rows)
