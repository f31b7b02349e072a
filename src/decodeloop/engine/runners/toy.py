"""A target that one knows by heart, for tests of the engine: its logits are a hash of the text before them.

It keeps the text in its paged KV and reads it back from there through the block tables, so an engine that loses,
shares or overwrites a block gets other tokens, or an error that names the block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from decodeloop.engine.models import Checkpoint
from decodeloop.engine.runners import RunnerOptions
from decodeloop.engine.runners.packing import Int64Array, check, check_copy, physical, seen, written
from decodeloop.speculation.forward import Batch, Forward, RunnerInfo
from decodeloop.types import IntArray

LAYERS = 2
HIDDEN = 16
UNWRITTEN = -1

_Bits = npt.NDArray[np.uint64]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ToyModel:
    """The law of the text; `RunnerOptions.options` sets its fields.

    order: how many of the last tokens the logits depend on; 0: on all of them.
    sharpness: the scale of the logits; 0: all tokens equally likely.
    depth_weight: how much the second layer (`order` tokens) adds to the first (the last token alone). With
        RunnerOptions.layers = 1 only the first is run, which makes a draft that is often right.
    equal_rows: groups of tokens with exactly equal logits.
    script: trigger -> the tokens it is followed by, almost surely; {7: [7]} repeats 7 for ever.
    nan_at, inf_at: after this token, one logit of every later row is NaN, or infinite.
    """

    vocab_size: int = 64
    order: int = 0
    seed: int = 0
    sharpness: float = 2.0
    depth_weight: float = 0.5
    equal_rows: tuple[tuple[int, ...], ...] = ()
    script: Mapping[int, tuple[int, ...]] | None = None
    nan_at: int | None = None
    inf_at: int | None = None
    max_context: int = 4096

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ToyModel:
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise ValueError(f"toy: no option {', '.join(unknown)}; choose from {', '.join(known)}")
        return cls(**options)

    def logits(self, text: Int64Array, layers: int) -> npt.NDArray[np.float32]:
        """[V] what follows `text`."""
        row = self._noise(text[-1:], layer=0)
        if layers > 1:
            row = row + self.depth_weight * self._noise(text[-self.order :], layer=1)
        row = self.sharpness * row
        scripted = self._scripted(text)
        if scripted is not None:
            row[scripted] = row.max() + 30.0  # e^-30 is as good as never, yet a greedy and a sampled draw both see it
        for first, *others in self.equal_rows:
            row[others] = row[first]
        for trigger, value in ((self.nan_at, np.nan), (self.inf_at, np.inf)):
            if trigger is not None and trigger in text:
                row[0] = value
        return row.astype(np.float32)

    def hidden(self, text: Int64Array, layer: int) -> npt.NDArray[np.float32]:
        """[HIDDEN] a layer's output: of the last token alone for layers 0 and 1, of the text for layer 2."""
        window = text[-self.order :] if layer > 1 else text[-1:]
        return (_uniform(self._key(window, layer), HIDDEN) - 0.5).astype(np.float32)

    def _noise(self, window: Int64Array, layer: int) -> _Floats:
        gumbel: _Floats = -np.log(-np.log(_uniform(self._key(window, layer), self.vocab_size)))
        return gumbel

    def _key(self, window: Int64Array, layer: int) -> np.uint64:
        places = np.arange(len(window), dtype=np.uint64)
        salt = np.uint64((self.seed * 1_000_003 + layer) % 2**64)
        terms = _mix(_mix(places + np.uint64(1)) ^ (window.astype(np.uint64) + np.uint64(1)))
        return np.uint64(_mix(terms.sum(dtype=np.uint64, keepdims=True) + salt)[0])

    def _scripted(self, text: Int64Array) -> int | None:
        """What the script says next: that of the latest trigger whose words aren't all said yet."""
        for trigger, said in (self.script or {}).items():
            for length in range(min(len(said), len(text))):
                start = len(text) - length
                if text[start - 1] == trigger and tuple(text[start:]) == tuple(said[:length]):
                    return said[length]
        return None


def _mix(x: _Bits) -> _Bits:
    """splitmix64's finaliser (Steele, Lea and Flood 2014): a bijection of 64 bits without visible structure."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _uniform(key: np.uint64, count: int) -> _Floats:
    """[count] in (0, 1), never an end."""
    bits = _mix(key ^ (np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)))
    uniform: _Floats = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return uniform


class ToyRunner:
    """A Runner without weights. `checkpoint` may be None; when given, its vocabulary size is the default."""

    def __init__(self, checkpoint: Checkpoint | None, options: RunnerOptions) -> None:
        if options.dtype not in ("auto", "float32"):
            raise ValueError(f"toy: no dtype {options.dtype!r}; choose from auto, float32")
        layers = options.layers_of(LAYERS, runner="toy")
        sizes = {} if checkpoint is None else {"vocab_size": checkpoint.config.vocab_size}
        self._model = ToyModel.of({**sizes, **options.options})
        self._info = RunnerInfo(
            name="toy",
            vocab_size=self._model.vocab_size,
            hidden_size=HIDDEN,
            layers=layers,
            max_context=self._model.max_context,
            block_tokens=options.block_tokens,
            kv_block_bytes=options.block_tokens * 16,
            weight_bytes=0,
            weight_format="none",
            batch_invariant=True,
            trees=True,
        )
        self.allocate_kv(0)

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def allocate_kv(self, blocks: int) -> None:
        entries = blocks * self._info.block_tokens
        try:
            self._kv = np.full((entries, 2), UNWRITTEN, dtype=np.int64)  # token, position
        except (MemoryError, ValueError) as error:
            needed = blocks * self._info.kv_block_bytes
            raise MemoryError(f"{blocks} KV blocks need {needed} bytes, more than there is") from error

    def forward(self, batch: Batch) -> Forward:
        check(batch, self._info, len(self._kv) // self._info.block_tokens)
        self._kv[written(batch, self._info.block_tokens)] = np.stack([batch.tokens, batch.positions], axis=1)
        texts = [self._text(batch, int(row)) for row in batch.logit_rows]
        logits = self._stack([self._model.logits(text, self._info.layers) for text in texts], self._info.vocab_size)
        if batch.vocabulary is not None:
            logits = logits[:, batch.vocabulary]
        hidden = {
            layer: self._stack([self._model.hidden(text, layer) for text in texts], HIDDEN)
            for layer in batch.hidden_layers
        }
        return Forward(logits, hidden)

    def copy_kv(self, sources: IntArray, destinations: IntArray) -> None:
        check_copy(sources, destinations, len(self._kv))
        self._kv[destinations] = self._kv[sources]

    def _text(self, batch: Batch, token: int) -> Int64Array:
        """The tokens up to `token`, as the KV holds them."""
        table = batch.block_tables[batch.slots[token]]
        entries = seen(batch, token)
        places = physical(table, entries, self._info.block_tokens)
        kept = self._kv[places]
        wrong = np.flatnonzero((kept[:, 1] != np.arange(len(entries))) | (places < 0))
        if len(wrong):
            place = int(wrong[0])
            block, position = places[place] // self._info.block_tokens, kept[place, 1]
            state = "was never written" if position == UNWRITTEN else f"holds position {position}"
            raise RuntimeError(f"slot {batch.slots[token]} reads position {place} from block {block}, which {state}")
        return kept[:, 0]

    @staticmethod
    def _stack(rows: list[npt.NDArray[np.float32]], width: int) -> npt.NDArray[np.float32]:
        return np.stack(rows) if rows else np.empty((0, width), dtype=np.float32)
