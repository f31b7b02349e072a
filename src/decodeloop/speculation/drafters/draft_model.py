"""Let a smaller model of the same vocabulary speak first (Leviathan et al. 2022, 2211.17192; Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from decodeloop.config import read_options
from decodeloop.speculation import NO_DRAFT, Draft, DraftBlock, DrafterSetup, DraftRequest
from decodeloop.speculation.drafters.kv import CachedSequence, DraftCache
from decodeloop.speculation.forward import Batch, Runner, block_tables
from decodeloop.speculation.sampling import Distribution, SamplingState
from decodeloop.types import FloatArray

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """model: what `open_runner` opens.

    catch_up_tokens: how many tokens that it missed it reads in a step, of all sequences; a sequence that is not caught
    up proposes nothing.
    """

    model: str = "int4"
    catch_up_tokens: int = 512

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError('the option "model" is empty: int4, layers:N, int4:layers:N or a path')
        if self.catch_up_tokens < 1:
            raise ValueError(f"catch_up_tokens must be at least 1, not {self.catch_up_tokens}")


@dataclass(slots=True)
class Run:
    """One sequence's draft in the making."""

    request: DraftRequest
    want: int
    cached: CachedSequence
    state: SamplingState
    tokens: list[int] = field(default_factory=list)
    rows: list[Distribution] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    ended: bool = False

    @property
    def backlog(self) -> int:
        return len(self.request.tokens) - self.cached.length

    def unread(self, count: int) -> list[int]:
        """The next `count` tokens that the draft model has not read: committed ones, then drafted ones."""
        start = self.cached.length
        drafted = max(0, start - len(self.request.tokens))
        return [*self.request.tokens[start : start + count], *self.tokens[drafted:]][:count]

    def extend(self, logits: FloatArray) -> None:
        """Draw the next token. Bad logits, nothing left to draw or a broken logit hook end this draft and no other."""
        try:
            q = self.state.distribution(logits)
        except Exception:  # a caller's hook may raise anything; the verifier's own row tells that caller
            self.ended = True
            return
        token = self._draw(q)
        self.tokens.append(token)
        self.rows.append(q)
        self.confidence.append((self.confidence[-1] if self.confidence else 1.0) * top_share(q, logits))
        self.ended = len(self.tokens) == self.want or self.state.ends(token)
        if not self.ended:
            self.state.advance(token)

    def _draw(self, q: Distribution) -> int:
        position = len(self.request.tokens) + len(self.tokens)
        if self.request.shares_noise:
            return self.request.chance.coupled(q, position)
        return self.request.chance.draft(q, position, len(self.request.tokens))

    def draft(self) -> Draft:
        masses = self.request.shares_noise or all(row.greedy for row in self.rows)
        q = None if masses else tuple(row.probs for row in self.rows)
        return Draft(tuple(self.tokens), q, tuple(self.confidence), drafter="draft_model")


class ModelDrafter:
    """Drafts a token for all sequences with each packed forward, after one that reads what was committed since.

    q rows are given only where the verifier may need them: a greedy draft is a point mass, and one drawn with the
    verifier's own noise is judged as one (exact under any rule, at no loss there). Confidence is the product of the
    rows' largest q (of a greedy row, its token's share in the logits' softmax): position k's depends on x_<k alone.
    """

    free = False

    def __init__(self, setup: DrafterSetup) -> None:
        self._options = read_options(ModelOptions, setup.options, of="drafter draft_model")
        self._runner = open_checked(setup, self._options.model)
        info = self._runner.info
        self._max_context = min(info.max_context, setup.max_context)
        most = setup.max_sequences * -(-self._max_context // info.block_tokens)
        blocks = min(most, int(setup.kv_memory_mb * MIB / info.kv_block_bytes))
        if blocks < 1:
            raise ValueError(
                f"drafter draft_model: {setup.kv_memory_mb} MiB hold no KV block of {info.kv_block_bytes} bytes"
            )
        self._runner.allocate_kv(blocks)
        self._kv_bytes = blocks * info.kv_block_bytes
        self._cache = DraftCache(blocks, info.block_tokens)

    def propose(self, requests: Sequence[DraftRequest]) -> DraftBlock:
        runs = self._admit(requests)
        drafting = self._catch_up(list(runs.values()))
        while drafting := [run for run in drafting if not run.ended]:
            self._draw(drafting, [1] * len(drafting))
        return DraftBlock(tuple(runs[i].draft() if i in runs else NO_DRAFT for i in range(len(requests))))

    def _admit(self, requests: Sequence[DraftRequest]) -> dict[int, Run]:
        """By index, the requests that have room in the draft model's context and memory, their KV cut to what holds."""
        in_use = {request.sequence_id for request in requests if request.draft_len}
        runs = {}
        for i, request in enumerate(requests):
            length = len(request.tokens)
            want = min(request.draft_len, self._max_context - length + 1)  # the last drafted token is not read
            if want < 1 or not length:
                continue
            cached = self._cache.reserve(request.sequence_id, length + want - 1, in_use)
            if cached is not None:
                cached.settle(request.tokens)
                runs[i] = Run(request, want, cached, request.state.fork())
        return runs

    def _catch_up(self, runs: list[Run]) -> list[Run]:
        """Read what was committed since, shortest backlog first; those that are level have their first token drawn."""
        budget = self._options.catch_up_tokens
        served, counts = [], []
        for run in sorted(runs, key=lambda run: run.backlog):
            ordinary = run.backlog <= run.want + 1
            count = run.backlog if ordinary else min(run.backlog, budget)
            budget -= 0 if ordinary else count
            if count:
                served.append(run)
                counts.append(count)
        if served:
            self._draw(served, counts)
        return [run for run in served if run.tokens]

    def _draw(self, runs: list[Run], counts: list[int]) -> None:
        """One packed forward over `counts[i]` unread tokens of each run, then a token for those that have read all."""
        level = [
            run.cached.length + count == len(run.request.tokens) + len(run.tokens)
            for run, count in zip(runs, counts, strict=True)
        ]
        chunks = [run.unread(count) for run, count in zip(runs, counts, strict=True)]
        logits = self._runner.forward(packed(runs, chunks, level)).logits
        for run, chunk in zip(runs, chunks, strict=True):
            fresh = max(0, min(len(chunk), len(run.request.tokens) - run.cached.length))
            run.cached.committed += fresh
            run.cached.drafted.extend(chunk[fresh:])
        for run, row in zip([run for run, done in zip(runs, level, strict=True) if done], logits, strict=True):
            run.extend(row)

    def finish(self, sequence_id: int, tokens: Sequence[int], organization: str) -> None:
        self._cache.release(sequence_id)

    def memory_bytes(self) -> Mapping[str, int]:
        return {"draft_weights": self._runner.info.weight_bytes, "draft_kv": self._kv_bytes}


def open_checked(setup: DrafterSetup, model: str) -> Runner:
    """The draft model's runner, refused when it speaks other tokens than the target."""
    if setup.open_runner is None:
        raise ValueError(f"drafter draft_model: nothing here can open the model {model!r}")
    runner = setup.open_runner(model)
    if runner.info.vocab_size != setup.vocab_size:
        raise ValueError(
            f"drafter draft_model: {model!r} has a vocabulary of {runner.info.vocab_size} tokens, the target one of"
            f" {setup.vocab_size}; a draft model must share the target's tokenizer"
        )
    return runner


def packed(runs: Sequence[Run], chunks: Sequence[Sequence[int]], level: Iterable[bool]) -> Batch:
    """One slot a run; the last token of the `level` ones gets logits."""
    counts = [len(chunk) for chunk in chunks]
    ends = np.cumsum(counts)
    return Batch(
        tokens=np.concatenate([np.asarray(chunk, dtype=np.int32) for chunk in chunks]),
        positions=np.concatenate(
            [
                np.arange(run.cached.length, run.cached.length + count, dtype=np.int32)
                for run, count in zip(runs, counts, strict=True)
            ]
        ),
        slots=np.repeat(np.arange(len(runs), dtype=np.int32), counts),
        block_tables=block_tables([run.cached.blocks for run in runs]),
        logit_rows=np.array([end - 1 for end, done in zip(ends, level, strict=True) if done], dtype=np.int32),
    )


def top_share(q: Distribution, logits: FloatArray) -> float:
    """max_v q(v); of a point mass, its token's share in the softmax of the raw logits [V]."""
    if not q.greedy:
        return 1.0 / float(np.exp(q.log_weights).sum())
    weights = np.exp(logits - logits.max())
    return float(weights[q.likeliest] / weights.sum(dtype=np.float64))
