"""Packs a step's tokens into one forward, and finds each sequence's rows in what comes back."""

from __future__ import annotations

from collections.abc import Sequence as Run
from dataclasses import dataclass

import numpy as np

from decodeloop.engine.scheduler import Turn
from decodeloop.engine.sequence import Sequence
from decodeloop.speculation.block import Draft
from decodeloop.speculation.forward import Batch, block_tables


@dataclass(frozen=True, slots=True)
class Lane:
    """One sequence's part of the step. rows: its logits' rows, empty for a prompt that goes on."""

    sequence: Sequence
    draft: Draft
    prefill_tokens: int  # 0: it decodes
    rows: slice

    @property
    def judged(self) -> bool:
        return bool(self.rows.stop > self.rows.start)

    @property
    def tokens(self) -> int:
        """What it adds to the forward."""
        return self.prefill_tokens or self.rows.stop - self.rows.start


@dataclass(frozen=True, slots=True)
class Packed:
    batch: Batch
    lanes: tuple[Lane, ...]


def pack(turn: Turn, drafts: Run[Draft], vocab_size: int) -> Packed:
    """Decoding sequences first, each with its last token and its draft, then the prompt pieces."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    lanes: list[Lane] = []

    def add(sequence: Sequence, fed: Run[int], draft: Draft, judged: int, prefill_tokens: int) -> None:
        """`judged` of the last fed tokens want logits."""
        first_row = len(logit_rows)
        slots.extend([len(lanes)] * len(fed))
        positions.extend(range(sequence.computed, sequence.computed + len(fed)))
        tokens.extend(fed)
        logit_rows.extend(range(len(tokens) - judged, len(tokens)))
        lanes.append(Lane(sequence, draft, prefill_tokens, slice(first_row, len(logit_rows))))

    for sequence, draft in zip(turn.decoding, drafts, strict=True):
        fed = [sequence.tokens[-1], *_within(draft.tokens, vocab_size)]
        add(sequence, fed, draft, len(fed), 0)
    for chunk in turn.chunks:
        sequence = chunk.sequence
        fed = sequence.tokens[sequence.computed : sequence.computed + chunk.tokens]
        add(sequence, fed, Draft(), int(chunk.completes), chunk.tokens)

    batch = Batch(
        tokens=np.asarray(tokens, dtype=np.int32),
        positions=np.asarray(positions, dtype=np.int32),
        slots=np.asarray(slots, dtype=np.int32),
        block_tables=block_tables([lane.sequence.table.blocks for lane in lanes]),
        logit_rows=np.asarray(logit_rows, dtype=np.int32),
    )
    return Packed(batch, tuple(lanes))


def _within(tokens: Run[int], vocab_size: int) -> Run[int]:
    """The tokens before the first that the target does not know.

    That one is still judged (its p is 0), so nothing is trimmed from the draft itself: trimming on a token's own value
    would change the law under sampled drafts. Rows after it are never asked for.
    """
    for i, token in enumerate(tokens):
        if not 0 <= token < vocab_size:
            return tokens[:i]
    return tokens
