"""The native runner: one packed forward by the compiled kernels, on the CPU, bit for bit batch-invariant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from decodeloop.engine import kernels
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.kernels.weights import LoadedWeights, load_weights
from decodeloop.engine.models import Checkpoint
from decodeloop.engine.runners import RunnerOptions
from decodeloop.speculation.drawing import CoupledRows, CoupledTokens
from decodeloop.speculation.forward import Batch, Forward, RunnerInfo
from decodeloop.types import FloatArray, IntArray

UNIT_BLOCK = 16  # positions in a block of the kernels


class NativeRunner:
    """A Runner.

    options.dtype: "auto" keeps each matrix in the format that the file has it in (four- and eight-bit blocks bit for
        bit, others in the next one that loses nothing that matters); or fp32, bf16, int8, int4 for all of them.
    options.options: {"isa": "avx2"} chooses other kernels than the machine's best.
    options.weights_of: a NativeRunner of the same checkpoint and dtype whose weights and threads this one uses too.
    """

    def __init__(self, checkpoint: Checkpoint, options: RunnerOptions) -> None:
        config = checkpoint.config
        _check(options)
        layers = options.layers_of(config.layers, runner="native")
        self._checkpoint, self._dtype, self._layers = checkpoint, options.dtype, layers
        self.loaded = self._share(options.weights_of) or load_weights(
            checkpoint,
            dtype=options.dtype,
            layers=layers,
            isa=options.options.get("isa", ""),
            threads=options.threads or read_hardware().threads,
        )
        self._engine = kernels.load().Engine(self.loaded.weights, layers, self.loaded.kv_format)
        self._blocks_per_block = options.block_tokens // UNIT_BLOCK
        self._logits = np.empty((0, config.vocab_size), dtype=np.float32)
        self._info = RunnerInfo(
            name="native",
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            layers=layers,
            max_context=config.max_context,
            block_tokens=options.block_tokens,
            kv_block_bytes=self._engine.kv_block_bytes * self._blocks_per_block,
            weight_bytes=0 if options.weights_of is not None else self.loaded.weights.nbytes,
            weight_format=self.loaded.format,
            batch_invariant=True,
            device=f"cpu ({self.isa}, {self.threads} threads, {'huge' if self.loaded.huge_pages else 'small'} pages)",
            trees=True,
        )

    @property
    def info(self) -> RunnerInfo:
        return self._info

    @property
    def isa(self) -> str:
        """Whose instructions run: avx512, avx2 or portable."""
        return str(self.loaded.weights.isa)

    @property
    def threads(self) -> int:
        return int(self.loaded.weights.threads)

    def section_seconds(self) -> dict[str, float]:
        """Where the time of the steps since the last call went: embed, qkv, attention, output, mlp, head."""
        return dict(self._engine.section_seconds())

    def allocate_kv(self, blocks: int) -> None:
        try:
            self._engine.allocate_kv(blocks * self._blocks_per_block)
        except MemoryError as error:
            needed = blocks * self._info.kv_block_bytes
            raise MemoryError(f"{blocks} KV blocks need {needed} bytes, more than there is") from error

    def forward(self, batch: Batch) -> Forward:
        rows = len(batch.logit_rows)
        hidden = np.empty((len(batch.hidden_layers), rows, self._info.hidden_size), dtype=np.float32)
        logits = self._room(rows) if batch.vocabulary is None else np.empty((rows, len(batch.vocabulary)), np.float32)
        self._engine.forward(
            tokens=_ints(batch.tokens),
            positions=_ints(batch.positions),
            slots=_ints(batch.slots),
            block_tables=self._tables(batch.block_tables),
            logit_rows=_ints(batch.logit_rows),
            entries=None if batch.kv_positions is None else _ints(batch.kv_positions),
            parents=None if batch.parents is None else _ints(batch.parents),
            vocabulary=None if batch.vocabulary is None else _ints(batch.vocabulary),
            hidden_layers=list(batch.hidden_layers),
            logits=logits,
            hidden=hidden,
        )
        return Forward(logits, dict(zip(batch.hidden_layers, hidden, strict=True)))

    def draw_coupled(self, logits: FloatArray, asked: Sequence[CoupledRows]) -> list[CoupledTokens | None]:
        drafted = [-1] * len(logits)
        for rows in asked:
            first, stop = rows.rows.start, rows.rows.stop
            known = rows.drafted[: stop - first]
            drafted[first : first + len(known)] = known
        tokens, entropies, emitted = self.loaded.weights.draw(
            logits=logits,
            first=[rows.rows.start for rows in asked],
            count=[rows.rows.stop - rows.rows.start for rows in asked],
            drafted=drafted,
            keys=[word for rows in asked for word in rows.key],
            positions=[rows.position for rows in asked],
            temperatures=[rows.sampling.temperature for rows in asked],
            least=[math.log(rows.sampling.min_p) if rows.sampling.min_p > 0 else -math.inf for rows in asked],
            top_k=[rows.sampling.top_k for rows in asked],
            top_p=[rows.sampling.top_p for rows in asked],
        )
        places = (slice(rows.rows.start, rows.rows.start + count) for rows, count in zip(asked, emitted, strict=True))
        return [
            CoupledTokens(tuple(tokens[place]), tuple(entropies[place])) if place.stop > place.start else None
            for place in places
        ]

    def copy_kv(self, sources: IntArray, destinations: IntArray) -> None:
        self._engine.copy_kv(_ints(sources), _ints(destinations))

    def _room(self, rows: int) -> npt.NDArray[np.float32]:
        """[rows, V], the same memory at every step: new pages would cost more than the head's work on them."""
        if len(self._logits) < rows:
            self._logits = np.empty((rows, self._info.vocab_size), dtype=np.float32)
        return self._logits[:rows]

    def _tables(self, tables: IntArray) -> npt.NDArray[np.int32]:
        if self._blocks_per_block == 1:
            return _ints(tables)
        parts = tables[:, :, None] * self._blocks_per_block + np.arange(self._blocks_per_block)
        return _ints(np.where(tables[:, :, None] < 0, -1, parts).reshape(len(tables), -1))

    def _share(self, other: object) -> LoadedWeights | None:
        if other is None:
            return None
        if (
            not isinstance(other, NativeRunner)
            or other._checkpoint is not self._checkpoint
            or other._dtype != self._dtype
        ):
            raise ValueError("native: weights_of must be a NativeRunner of the same checkpoint and dtype")
        if self._layers > other._layers:
            raise ValueError(f"native: weights_of has {other._layers} layers, fewer than {self._layers}")
        return other.loaded


def _check(options: RunnerOptions) -> None:
    if options.device != "cpu":
        raise ValueError(f"native: no device {options.device!r}; choose cpu")
    if options.block_tokens < 1 or options.block_tokens % UNIT_BLOCK:
        raise ValueError(f"native: block_tokens must be a multiple of {UNIT_BLOCK}, not {options.block_tokens}")
    unknown = sorted(set(options.options) - {"isa"})
    if unknown:
        raise ValueError(f"native: no option {', '.join(unknown)}; choose from isa")


def _ints(values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(values, dtype=np.int32)
