"""Which KV blocks hold which prefix. Keys are chained digests, salted per organization: no timing between tenants."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

Digest = bytes


def root_digest(organization: str) -> Digest:
    return blake2b(organization.encode(), digest_size=16, person=b"decodeloop-kv").digest()


def block_digest(parent: Digest, tokens: Sequence[int]) -> Digest:
    """Names a full block by everything that its keys and values depend on: its tokens and all before them."""
    return blake2b(np.asarray(tokens, dtype=np.int32).tobytes(), digest_size=16, key=parent).digest()


class PrefixCache:
    """Maps digests to blocks, and remembers which of those nobody uses any more, oldest first."""

    def __init__(self) -> None:
        self._block_of: dict[Digest, int] = {}
        self._digest_of: dict[int, Digest] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._digest_of

    @property
    def idle_blocks(self) -> int:
        """Cached blocks that no sequence holds: the ones that can be evicted."""
        return len(self._idle)

    def find(self, digest: Digest) -> int | None:
        return self._block_of.get(digest)

    def publish(self, digest: Digest, block: int) -> bool:
        """Offer `block` under `digest`. False when another block already has that content."""
        if digest in self._block_of:
            return False
        self._block_of[digest] = block
        self._digest_of[block] = digest
        return True

    def rest(self, block: int) -> None:
        """The last user of a cached block has gone."""
        self._idle[block] = None

    def wake(self, block: int) -> None:
        self._idle.pop(block, None)

    def evict(self) -> int:
        """Forget the longest idle block and give it away."""
        block, _ = self._idle.popitem(last=False)
        del self._block_of[self._digest_of.pop(block)]
        return block

    def clear(self) -> list[int]:
        """Forget everything; returns the blocks that were idle."""
        idle = list(self._idle)
        self._idle.clear()
        self._block_of.clear()
        self._digest_of.clear()
        return idle
