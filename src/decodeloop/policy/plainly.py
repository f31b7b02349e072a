"""What a recorded step would have taken with nothing verified."""

from __future__ import annotations

from decodeloop.policy.cost import StepCosts
from decodeloop.types import StepRecord


def foretold_ms(costs: StepCosts, record: StepRecord) -> float:
    """By the step times that are known."""
    tokens = sum(row.prefill_tokens or 1 for row in record.rows)
    return costs.step_ms(tokens, record.load.context_tokens, len(record.rows))


def plain_ms(costs: StepCosts, record: StepRecord) -> float:
    """As foretold; of a step that read a prompt, what it took, less the share that verifying is foretold to add.

    How long a piece of a prompt takes depends on what comes before it, and is foretold worst (18 % off at the median,
    36 % in contexts of thousands). It is the same plainly, so nobody's speculation answers for it.
    """
    plain = foretold_ms(costs, record)
    if not any(row.prefill_tokens for row in record.rows):
        return plain
    drafts = sum(row.draft_len > 0 for row in record.rows)
    tokens = sum(row.prefill_tokens or 1 + row.verify_len for row in record.rows)
    taken = costs.step_ms(tokens, record.load.context_tokens, len(record.rows))
    taken += costs.speculating_ms(drafts) if drafts else 0.0
    return plain * (record.step_ms - record.draft_ms) / taken
