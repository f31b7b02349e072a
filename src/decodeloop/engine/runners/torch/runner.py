"""One packed forward of a transformer in torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from decodeloop.engine.models import Checkpoint, ModelConfig
from decodeloop.engine.runners import RunnerOptions
from decodeloop.engine.runners.packing import check, check_copy, written
from decodeloop.engine.runners.torch.attention import Attention
from decodeloop.engine.runners.torch.formats import WeightFormat
from decodeloop.engine.runners.torch.groups import Layout, PackedPlanner, Planner, SinglePlanner
from decodeloop.engine.runners.torch.kv import KvShape
from decodeloop.engine.runners.torch.linear import PlainLinear
from decodeloop.engine.runners.torch.rotary import Rotary
from decodeloop.engine.runners.torch.rows import Rows, Tiles, Whole, steady_tiles
from decodeloop.engine.runners.torch.threads import use_threads
from decodeloop.engine.runners.torch.transformer import Transformer
from decodeloop.engine.runners.torch.weights import ModelWeights, load_weights
from decodeloop.speculation.forward import Batch, Forward, RunnerInfo
from decodeloop.types import FloatArray, IntArray


class TorchRunner:
    """A Runner. Ordinary mode is made for speed; `options.fixed_shape` makes logits and KV batch-invariant, bit for
    bit, at the price of padded matrix products and attention token by token.

    options.weights_of: a TorchRunner of the same checkpoint, format and device whose weights this one uses too.
    """

    def __init__(self, checkpoint: Checkpoint, options: RunnerOptions) -> None:
        config = checkpoint.config
        layers = options.layers_of(config.layers, runner="torch")
        self._checkpoint, self._config = checkpoint, config
        self.format = WeightFormat.of(options.dtype, options.device)
        use_threads(options.threads)
        with torch.inference_mode():
            self.weights = _weights(checkpoint, self.format, layers, options.weights_of)
            self._model = Transformer(config, self.weights)
            self._rotary = Rotary(config, self.format.device)
            self._rows: Rows = self._tiles() if options.fixed_shape else Whole()
        self._layers = list(zip(self.weights.layers[:layers], _windows(config)[:layers], strict=True))
        self._shape = KvShape.of(
            config,
            layers=layers,
            block_tokens=options.block_tokens,
            dtype=self.format.kv_dtype,
            device=self.format.device,
        )
        self._planner = self._plan(options)
        self._attention = Attention(config)
        self._subset: tuple[IntArray, PlainLinear] | None = None
        self._info = RunnerInfo(
            name="torch",
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            layers=layers,
            max_context=config.max_context,
            block_tokens=options.block_tokens,
            kv_block_bytes=self._shape.block_bytes,
            weight_bytes=0 if options.weights_of is not None else self.weights.nbytes,
            weight_format=self.format.name,
            batch_invariant=options.fixed_shape,
            device=str(self.format.device),
            trees=True,
        )
        self.allocate_kv(0)

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def allocate_kv(self, blocks: int) -> None:
        self._pools: tuple[Tensor, ...] = ()
        with torch.inference_mode():
            self._pools = self._shape.allocate(blocks)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Forward:
        check(batch, self._info, len(self._pools[0]) // self._info.block_tokens)
        rows, model, device = self._rows, self._model, self.format.device
        groups = self._planner.groups(batch)
        places = torch.from_numpy(written(batch, self._info.block_tokens)).to(device)
        wanted = _indices(batch.logit_rows, device)
        positions = torch.from_numpy(batch.positions.astype(np.float32)).to(device)
        ordinary = rows.map(self._rotary.ordinary, positions)
        window = ordinary if self._rotary.same else rows.map(self._rotary.window, positions)

        x = model.embed(_indices(batch.tokens, device))
        hidden = {0: x[wanted]} if 0 in batch.hidden_layers else {}
        heads = self._config.heads
        for index, ((layer, windowed), pool) in enumerate(zip(self._layers, self._pools, strict=True)):
            qkv = rows.map(
                lambda x, factors, layer=layer: model.project(layer, x, factors), x, window if windowed else ordinary
            ).to(self._shape.dtype)
            pool.index_copy_(0, places, qkv[:, heads:])
            attended = self._attention.attend(groups, qkv[:, :heads], pool, window=windowed)
            x = rows.map(lambda x, attended, layer=layer: model.finish(layer, x, attended), x, attended)
            if index + 1 in batch.hidden_layers:
                hidden[index + 1] = x[wanted]
        return Forward(self._logits(x[wanted], batch.vocabulary), {at: _numpy(rows) for at, rows in hidden.items()})

    @torch.inference_mode()
    def copy_kv(self, sources: IntArray, destinations: IntArray) -> None:
        check_copy(sources, destinations, len(self._pools[0]))
        read, write = (_indices(entries, self.format.device) for entries in (sources, destinations))
        for pool in self._pools:
            pool.index_copy_(0, write, pool.index_select(0, read))

    def _logits(self, x: Tensor, vocabulary: IntArray | None) -> FloatArray:
        """x: [R, H]."""
        width = self._config.vocab_size if vocabulary is None else len(vocabulary)
        if not len(x):
            return np.empty((0, width), dtype=np.float32)
        head, select = self.weights.head, None
        if vocabulary is not None:
            if isinstance(head, PlainLinear):
                head = self._head_rows(head, vocabulary)
            else:
                select = _indices(vocabulary, x.device)
        logits = self._rows.map(lambda x: self._model.logits(head, x), x)
        return _numpy(logits if select is None else logits[:, select])

    def _head_rows(self, head: PlainLinear, vocabulary: IntArray) -> PlainLinear:
        """A draft vocabulary seldom changes from step to step: its rows are kept till it does."""
        if self._subset is None or not np.array_equal(self._subset[0], vocabulary):
            self._subset = vocabulary.copy(), head.rows(_indices(vocabulary, self.format.device))
        return self._subset[1]

    def _plan(self, options: RunnerOptions) -> Planner:
        config = self._config
        layout = Layout(
            block_tokens=options.block_tokens,
            window=config.sliding_window if any(_windows(config)) else None,
            heads_per_kv=config.heads // config.kv_heads,
            dtype=self.format.kv_dtype,
            device=self.format.device,
        )
        return SinglePlanner(layout) if options.fixed_shape else PackedPlanner(layout)

    def _tiles(self) -> Tiles:
        """Tiles for this machine, tried on the functions of a layer and on the head."""
        config, model, layer = self._config, self._model, self.weights.layers[0]
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(3, config.hidden_size, generator=draw).to(self.format.device)
        attended = torch.randn(3, config.heads * config.head_dim, generator=draw).to(self.format.device)
        positions = torch.tensor([3.0, 77.0, config.max_context - 1.0], device=self.format.device)

        def all_of_a_token(x: Tensor, attended: Tensor, positions: Tensor) -> Tensor:
            qkv = model.project(layer, x, self._rotary.ordinary(positions)).flatten(1)
            out = model.finish(layer, x, attended.to(self.format.kv_dtype))
            return torch.cat([qkv, out, model.logits(self.weights.head, x)], dim=1)

        return steady_tiles(all_of_a_token, x, attended, positions)


def _windows(config: ModelConfig) -> tuple[bool, ...]:
    """Which layers have a sliding window."""
    return (config.sliding_window and config.window_layers) or (False,) * config.layers


def _weights(checkpoint: Checkpoint, form: WeightFormat, layers: int, shared: object) -> ModelWeights:
    if shared is None:
        return load_weights(checkpoint, form, layers)
    if not isinstance(shared, TorchRunner) or shared._checkpoint is not checkpoint or shared.format != form:
        raise ValueError("torch: weights_of must be a TorchRunner of the same checkpoint, dtype and device")
    if layers > shared.info.layers:
        raise ValueError(f"torch: weights_of has {shared.info.layers} layers, fewer than {layers}")
    return shared.weights


def _indices(values: IntArray, device: torch.device) -> Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(device)


def _numpy(rows: Tensor) -> FloatArray:
    """Without a copy when the rows are float32 and on the CPU."""
    return rows.float().cpu().numpy()
