"""Which tokens a text has used and how often: what repetition, presence and frequency penalties act on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decodeloop.types import FloatArray, IntArray, SamplingParams


class TokenCounts:
    """Output counts per distinct token, undone in the reverse order of `add`.

    repetition_penalty (CTRL, 1909.05858) acts once on every token of prompt or output: a positive logit is divided by
    it, a negative one multiplied. frequency_penalty is subtracted once per occurrence in the output, presence_penalty
    once if there is any (OpenAI).
    """

    def __init__(self, params: SamplingParams, prompt_ids: IntArray) -> None:
        self._params = params
        self._prompt_ids = prompt_ids  # distinct; empty unless there is a repetition penalty
        self._slots: dict[int, int] = {}  # token -> its place in the two lists below
        self._ids: list[int] = []
        self._counts: list[int] = []

    @classmethod
    def of(cls, params: SamplingParams, prompt: Sequence[int]) -> TokenCounts | None:
        """None when no penalty is asked."""
        repeats = params.repetition_penalty != 1.0
        if not repeats and params.presence_penalty == 0.0 and params.frequency_penalty == 0.0:
            return None
        return cls(params, np.unique(np.asarray(prompt if repeats else (), dtype=np.int64)))

    def add(self, token: int) -> None:
        slot = self._slots.setdefault(token, len(self._ids))
        if slot == len(self._ids):
            self._ids.append(token)
            self._counts.append(0)
        self._counts[slot] += 1

    def remove(self, token: int) -> None:
        """Undo the last `add`, which was of `token`."""
        slot = self._slots[token]
        self._counts[slot] -= 1
        if self._counts[slot] == 0:
            del self._slots[token]
            self._ids.pop()
            self._counts.pop()

    def copy(self) -> TokenCounts:
        twin = TokenCounts(self._params, self._prompt_ids)
        twin._slots = self._slots.copy()
        twin._ids = self._ids.copy()
        twin._counts = self._counts.copy()
        return twin

    def penalise(self, row: FloatArray, token_ids: IntArray | None) -> None:
        """In place. row: [v] float64, of the ids `token_ids` (None: 0..v-1)."""
        params = self._params
        ids = np.asarray(self._ids, dtype=np.int64)
        if params.repetition_penalty != 1.0:
            columns, _ = columns_of(np.union1d(self._prompt_ids, ids), len(row), token_ids)
            used = row[columns]
            row[columns] = np.where(used > 0, used / params.repetition_penalty, used * params.repetition_penalty)
        columns, found = columns_of(ids, len(row), token_ids)
        counts = np.asarray(self._counts, dtype=np.float64)[found]
        row[columns] -= params.frequency_penalty * counts
        row[columns] -= params.presence_penalty


def columns_of(ids: IntArray, columns: int, token_ids: IntArray | None) -> tuple[IntArray, IntArray]:
    """Where `ids` stand in a row of that many columns, and which of them (indices into ids) stand there at all."""
    if token_ids is None:
        found = np.flatnonzero((ids >= 0) & (ids < columns))
        return ids[found], found
    places = np.searchsorted(token_ids, ids)
    found = np.flatnonzero(token_ids[np.minimum(places, columns - 1)] == ids)
    return places[found], found
