"""Who holds which block of the KV pool. Counts only: the runner owns the memory itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from decodeloop.engine.prefix_cache import Digest, PrefixCache, block_digest, root_digest


@dataclass(slots=True)
class BlockTable:
    """One sequence's blocks, in order of position. `published` of them are offered to the prefix cache."""

    blocks: list[int] = field(default_factory=list)
    published: int = 0
    digest: Digest = b""  # of the last published block


class KvCache:
    """A pool of `blocks` blocks of `block_tokens` positions, shared where prefixes are equal.

    A block is free, held (by one or more tables), or idle: unheld but still cached, and evicted when space is needed.
    Only full blocks are ever shared, and a shared block is never written.

    spare_blocks: that committed text leaves free while it can evict idle ones instead. Drafts evict nothing, so without
    them a cache full of prefixes would leave no room to speculate in.
    """

    def __init__(self, blocks: int, block_tokens: int, *, prefix_caching: bool = True, spare_blocks: int = 0) -> None:
        self.blocks, self.block_tokens, self._spare_blocks = blocks, block_tokens, spare_blocks
        self._free = list(range(blocks - 1, -1, -1))
        self._holders = [0] * blocks
        self._prefixes = PrefixCache()
        self._prefix_caching = prefix_caching
        self.queried_tokens = 0
        self.hit_tokens = 0

    @property
    def free_blocks(self) -> int:
        """Blocks that can be had without evicting anything."""
        return len(self._free)

    @property
    def available_blocks(self) -> int:
        return len(self._free) + self._prefixes.idle_blocks

    @property
    def free_fraction(self) -> float:
        return self.available_blocks / self.blocks

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def open(self, tokens: Sequence[int], organization: str) -> tuple[BlockTable, int]:
        """A table that starts with the cached prefix of `tokens`, and how many tokens that covers.

        At least one token is always left to compute: its logits are needed.
        """
        table = BlockTable(digest=root_digest(organization))
        if self._prefix_caching:
            for start in range(0, len(tokens) - self.block_tokens, self.block_tokens):
                digest = block_digest(table.digest, tokens[start : start + self.block_tokens])
                block = self._prefixes.find(digest)
                if block is None:
                    break
                self._hold(block)
                table.blocks.append(block)
                table.digest = digest
        table.published = len(table.blocks)
        return table, table.published * self.block_tokens

    def count_lookup(self, tokens: int, covered: int) -> None:
        """A sequence was admitted: of its `tokens`, `covered` were cached."""
        if self._prefix_caching:
            self.queried_tokens += tokens
            self.hit_tokens += covered

    def grow(self, table: BlockTable, positions: int) -> bool:
        """Make room for `positions` positions of text, evicting idle blocks if need be. False, and no change, if it
        can't."""
        missing = self.blocks_for(positions) - len(table.blocks)
        if missing > self.available_blocks:
            return False
        while self._prefixes.idle_blocks and len(self._free) < max(missing, 0) + self._spare_blocks:
            self._free.append(self._prefixes.evict())
        self._take(table, missing)
        return True

    def lend(self, table: BlockTable, positions: int) -> bool:
        """The same for a draft, which evicts nothing."""
        missing = self.blocks_for(positions) - len(table.blocks)
        if missing > len(self._free):
            return False
        self._take(table, missing)
        return True

    def shrink(self, table: BlockTable, positions: int) -> None:
        """Give back the blocks beyond `positions`: room that drafts needed and did not fill."""
        while len(table.blocks) > max(self.blocks_for(positions), table.published):
            self._drop(table.blocks.pop())

    def publish(self, table: BlockTable, tokens: Sequence[int], computed: int) -> None:
        """Offer the full blocks among the first `computed` positions to others of the same organization."""
        if not self._prefix_caching:
            return
        while (table.published + 1) * self.block_tokens <= computed:
            start = table.published * self.block_tokens
            table.digest = block_digest(table.digest, tokens[start : start + self.block_tokens])
            self._prefixes.publish(table.digest, table.blocks[table.published])
            table.published += 1

    def release(self, table: BlockTable) -> None:
        """The sequence is gone (or preempted): its blocks are free, or idle where they are cached.

        Later blocks rest first, so that a prefix outlives its continuations.
        """
        while table.blocks:
            self._drop(table.blocks.pop())
        table.published = 0

    def reset_prefixes(self) -> None:
        """Forget every cached prefix (held blocks stay with their holders)."""
        self._free.extend(self._prefixes.clear())

    def _take(self, table: BlockTable, missing: int) -> None:
        for _ in range(missing):
            block = self._free.pop()
            self._holders[block] = 1
            table.blocks.append(block)

    def _hold(self, block: int) -> None:
        if self._holders[block] == 0:
            self._prefixes.wake(block)
        self._holders[block] += 1

    def _drop(self, block: int) -> None:
        self._holders[block] -= 1
        if self._holders[block] == 0:
            if block in self._prefixes:
                self._prefixes.rest(block)
            else:
                self._free.append(block)
