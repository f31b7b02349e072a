"""A draft model's own KV blocks: who holds which, and what of each sequence is in them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

__all__ = ["CachedSequence", "DraftCache"]


@dataclass(slots=True)
class CachedSequence:
    """The KV of the sequence's first `committed` tokens, then that of `drafted` ones whose fate is not known yet.

    blocks: physical block of each logical block; their entries beyond `length` are stale.
    """

    blocks: list[int] = field(default_factory=list)
    committed: int = 0
    drafted: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return self.committed + len(self.drafted)

    def settle(self, tokens: Sequence[int]) -> None:
        """Keep what agrees with the committed `tokens`, all but the last of them at most: its logits are wanted."""
        kept = 0
        for drafted, token in zip(self.drafted, tokens[self.committed :], strict=False):
            if drafted != token:
                break
            kept += 1
        self.committed = min(self.committed + kept, len(tokens) - 1)
        self.drafted.clear()


class DraftCache:
    """`blocks` blocks of `block_tokens` positions, lent to sequences; the least recently used one pays when short."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._free = list(range(blocks - 1, -1, -1))
        self._sequences: OrderedDict[int, CachedSequence] = OrderedDict()

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._sequences

    def reserve(self, sequence_id: int, entries: int, in_use: Collection[int]) -> CachedSequence | None:
        """The sequence, now the most recently used, with blocks for `entries` positions.

        None, and the sequence holds nothing any more, when they can't be had without evicting one that is `in_use`.
        """
        sequence = self._sequences.setdefault(sequence_id, CachedSequence())
        self._sequences.move_to_end(sequence_id)
        missing = -(-entries // self.block_tokens) - len(sequence.blocks)
        for other in [other for other in self._sequences if other not in in_use and other != sequence_id]:
            if missing <= len(self._free):
                break
            self.release(other)
        if missing > len(self._free):
            self.release(sequence_id)
            return None
        sequence.blocks.extend(self._free.pop() for _ in range(missing))
        return sequence

    def release(self, sequence_id: int) -> None:
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is not None:
            self._free.extend(reversed(sequence.blocks))
