"""What a runner that draws tokens itself must hold to."""

from __future__ import annotations

import numpy as np

from decodeloop.engine.rows import VerifyRows
from decodeloop.speculation.block import Draft, Verdict
from decodeloop.speculation.drawing import CoupledRows, DrawsCoupled, PlainSampling
from decodeloop.speculation.sampling import RequestChance, SamplingState
from decodeloop.speculation.verifiers.coupled import CoupledVerifier
from decodeloop.types import FloatArray, SamplingParams

ROWS = 4  # of a sequence
ASKED = (
    *(SamplingParams(temperature=temperature) for temperature in (0.0, 0.3, 1.0)),
    SamplingParams(min_p=0.05),
    SamplingParams(top_k=7),
    SamplingParams(top_p=0.9),
    SamplingParams(temperature=0.7, min_p=0.01, top_k=40, top_p=0.95),
)


def check_draws(runner: DrawsCoupled, vocab_size: int) -> None:
    """Raises AssertionError where a token isn't the one that sampling state, chance and verifier say.

    Rows with and without ties and filters, drafts that are right for every number of tokens, several sequences at once,
    and rows that are no distribution.
    """
    rng = np.random.default_rng(0)
    logits = (3.0 * rng.standard_normal((2 * ROWS * ROWS, vocab_size))).astype(np.float32)
    logits[: len(logits) // 2] = np.round(logits[: len(logits) // 2])
    for params in ASKED:
        state = SamplingState(params, (), vocab_size=vocab_size, eos_ids=frozenset())
        sampling = state.plain
        assert sampling is not None
        asked: list[CoupledRows] = []
        expected: list[tuple[int, ...]] = []
        for first in range(0, len(logits), ROWS):
            rows = CoupledRows(slice(first, first + ROWS), (), (first, 7), 1000 * first, sampling)
            right = _said(logits, rows, state, right=ROWS - 1).emitted
            wrong_at = first // ROWS % ROWS
            drafted = (*right[:wrong_at], *((token + 1) % vocab_size for token in right[wrong_at : ROWS - 1]))
            asked.append(CoupledRows(rows.rows, drafted, rows.key, rows.position, sampling))
            expected.append(right[: wrong_at + 1] if vocab_size > 1 else right)
        for rows, drawn, tokens in zip(asked, runner.draw_coupled(logits, asked), expected, strict=True):
            where = f"rows {rows.rows} of {sampling}"
            assert drawn is not None, f"{where} were not drawn"
            assert drawn.tokens == tokens, f"{where}: {drawn.tokens}, not {tokens}"
            assert len(drawn.entropies) == len(tokens), f"{len(drawn.entropies)} entropies of {len(tokens)} tokens"
    for bad in (np.nan, np.inf):
        logits[0, vocab_size - 1] = bad
        refused = runner.draw_coupled(logits, [CoupledRows(slice(0, 1), (), (1, 2), 0, PlainSampling(1.0))])
        assert refused == [None], f"a row that holds {bad} was drawn: {refused}"


def _said(logits: FloatArray, rows: CoupledRows, state: SamplingState, *, right: int) -> Verdict:
    """What the reference says to a draft whose first `right` tokens are right."""
    drafted: tuple[int, ...] = ()
    while True:
        seen = VerifyRows(state, logits[rows.rows], drafted, rows.position)
        verdict = CoupledVerifier().judge(Draft(drafted), seen, RequestChance(rows.key))
        seen.close()
        if len(drafted) == right:
            return verdict
        drafted = verdict.emitted
