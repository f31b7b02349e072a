"""The verdicts of a step: from the target's rows to the tokens that it would have said."""

from __future__ import annotations

from collections.abc import Sequence

from decodeloop.engine.batching import Lane
from decodeloop.engine.records import Judged
from decodeloop.engine.rows import VerifyRows
from decodeloop.speculation import Verdict, Verifier
from decodeloop.speculation.drawing import CoupledRows, CoupledTokens, DrawsCoupled
from decodeloop.speculation.forward import Forward, Runner
from decodeloop.speculation.sampling import RequestChance
from decodeloop.speculation.verifiers.coupled import CoupledVerifier


class Judging:
    """Asks the verifier, or, where it comes to the same and costs less, the runner: for rows without a state."""

    def __init__(self, verifier: Verifier, runner: Runner) -> None:
        self._verifier = verifier
        self._draws: DrawsCoupled | None = None
        if isinstance(verifier, CoupledVerifier) and isinstance(runner, DrawsCoupled):
            self._draws = runner

    def judge(self, lanes: Sequence[Lane], forward: Forward) -> list[Judged]:
        """Of every lane that is to be judged, in order. One that fails doesn't concern the others."""
        judged = [lane for lane in lanes if lane.judged]
        return [
            self._judge(lane, forward, drawn) for lane, drawn in zip(judged, self._draw(judged, forward), strict=True)
        ]

    def _draw(self, lanes: Sequence[Lane], forward: Forward) -> list[CoupledTokens | None]:
        """What the runner draws; None where it can't, or doesn't."""
        drawn: list[CoupledTokens | None] = [None] * len(lanes)
        if self._draws is None:
            return drawn
        asked = {i: rows for i, lane in enumerate(lanes) if (rows := _stateless(lane)) is not None}
        if asked:
            for i, tokens in zip(asked, self._draws.draw_coupled(forward.logits, list(asked.values())), strict=True):
                drawn[i] = tokens
        return drawn

    def _judge(self, lane: Lane, forward: Forward, drawn: CoupledTokens | None) -> Judged:
        sequence = lane.sequence
        rows = VerifyRows(sequence.state, forward.logits[lane.rows], lane.draft.tokens, len(sequence.tokens))
        if drawn is not None:
            return Judged(lane, rows, verdict=Verdict(len(drawn.tokens) - 1, drawn.tokens), entropy=drawn.entropies)
        try:
            verdict = self._verifier.judge(lane.draft, rows, sequence.chance)
            rows.close()
            return Judged(lane, rows, verdict=verdict, entropy=rows.entropies(len(verdict.emitted)))
        except Exception as error:  # its logits, its constraints, its caller's hook
            return Judged(lane, rows, error=error)


def _stateless(lane: Lane) -> CoupledRows | None:
    """A lane's rows where nothing but its logits decides what p is."""
    sequence = lane.sequence
    sampling = sequence.state.plain
    if sampling is None or lane.draft.parents is not None or not isinstance(sequence.chance, RequestChance):
        return None
    return CoupledRows(lane.rows, lane.draft.tokens, sequence.chance.key, len(sequence.tokens), sampling)
