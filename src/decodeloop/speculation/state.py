"""What a row's distribution depends on beside its logits, as a value that advances, rolls back and forks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from decodeloop.speculation.counts import TokenCounts
from decodeloop.speculation.distribution import Distribution, NothingLeft
from decodeloop.speculation.drawing import PlainSampling
from decodeloop.speculation.filters import keep
from decodeloop.speculation.shaping import Shaping
from decodeloop.types import BoolArray, FloatArray, IntArray, SamplingParams

GREEDY_BELOW = 1e-4  # a temperature at or under this is its limit, 0


class TokenMatcher(Protocol):
    """A grammar's position in its text. Provided by engine/text/grammar."""

    def allowed(self) -> BoolArray:
        """[V] bool: tokens that may come next (EOS among them where the text may end)."""
        ...

    def accept(self, token: int) -> bool:
        """Advance over `token`; False, and no change, when it may not come next."""
        ...

    def rollback(self, count: int) -> None:
        """Undo the last `count` accepted tokens."""
        ...

    def fork(self) -> TokenMatcher:
        """An independent copy at the same place."""
        ...


class SamplingState:
    """What the next row's p depends on beside the logits: counts, grammar, how many tokens are out.

    A value with advance / rollback / fork: rows of a draft are processed by advancing over x_<i and rolling back; only
    `commit` advances for good.

    The order, vLLM's: repetition, frequency and presence penalties; logit_bias; the logit hook; the masks (allowed and
    banned ids, min_tokens, grammar: last, so that nothing brings an excluded token back); temperature; min_p; top_k;
    top_p, each filter on what the one before left.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        *,
        vocab_size: int,
        eos_ids: frozenset[int],
        matcher: TokenMatcher | None = None,
    ) -> None:
        """Raises RequestRefused when `params` name a token id outside the vocabulary."""
        self.params = params
        self.vocab_size = vocab_size
        self._prompt = tuple(prompt)
        self._output: list[int] = []
        self._eos_ids = eos_ids
        self._shaping = Shaping.of(params, vocab_size, eos_ids)
        self._counts = TokenCounts.of(params, prompt)
        self._matcher = matcher
        self._matched: list[bool] = []  # per output token: whether the grammar advanced over it
        self._dead_at: int | None = None  # output length at which the grammar forbade the last token
        self._over_at: int | None = None  # output length at which the text was over: the grammar says no more

    @property
    def output_len(self) -> int:
        return len(self._output)

    @property
    def dead(self) -> bool:
        """The grammar forbade a token that was advanced over: what follows has probability 0."""
        return self._dead_at is not None

    @property
    def plain(self) -> PlainSampling | None:
        """What p is here and in all that follows, as long as logits alone decide it; None where more does."""
        params = self.params
        asked = not self._shaping.idle or self._counts is not None or self._matcher is not None
        if asked or len(self._output) < params.min_tokens:
            return None
        if params.temperature <= GREEDY_BELOW:
            return PlainSampling(0.0)
        return PlainSampling(params.temperature, params.min_p, params.top_k, params.top_p)

    def ends(self, token: int) -> bool:
        """Whether `token` ends the output by itself: a stop id, or EOS unless it is ignored."""
        return token in self._shaping.ending_ids

    def advance(self, token: int) -> None:
        """Count `token` as output. A token that the grammar forbids makes the state `dead` until rolled back."""
        self._output.append(token)
        self._matched.append(self._match(token))
        if self._counts is not None:
            self._counts.add(token)

    def _match(self, token: int) -> bool:
        if self._matcher is None or self._dead_at is not None or self._over_at is not None:
            return False
        matched = self._matcher.accept(token)
        if not matched:
            self._dead_at = len(self._output)
        elif token in self._eos_ids or self.ends(token):
            self._over_at = len(self._output)
        return matched

    def rollback(self, count: int) -> None:
        """Undo the last `count` advances."""
        if not 0 <= count <= len(self._output):
            raise ValueError(f"cannot roll back {count} of {len(self._output)} tokens")
        length = len(self._output) - count
        matched = sum(self._matched[length:])
        if matched and self._matcher is not None:
            self._matcher.rollback(matched)
        if self._counts is not None:
            for token in reversed(self._output[length:]):
                self._counts.remove(token)
        del self._output[length:], self._matched[length:]
        if self._dead_at is not None and self._dead_at > length:
            self._dead_at = None
        if self._over_at is not None and self._over_at > length:
            self._over_at = None

    def fork(self) -> SamplingState:
        """An independent copy: advancing one does not show in the other."""
        twin = object.__new__(SamplingState)
        twin.__dict__.update(self.__dict__)
        twin._output = self._output.copy()
        twin._matched = self._matched.copy()
        twin._counts = None if self._counts is None else self._counts.copy()
        twin._matcher = None if self._matcher is None else self._matcher.fork()
        return twin

    def distribution(self, logits: FloatArray, token_ids: IntArray | None = None) -> Distribution:
        """p after the tokens advanced over.

        logits: [V] raw; or [v] with token_ids, the strictly ascending target ids of a reduced draft vocabulary, on
            which a logit hook is not run.

        Raises FloatingPointError when they hold NaN or +inf, or (NothingLeft) when no token is left.
        """
        if self.dead:
            raise RuntimeError("no row follows a token that the grammar forbids: roll back first")
        likeliest = int(logits.argmax())  # NaN counts as the maximum
        if not logits[likeliest] < np.inf:
            raise FloatingPointError(f"the model's logits hold {logits[likeliest]}")
        row = self._shaped(logits, token_ids)
        if row is not logits:
            likeliest = int(row.argmax())
        if row[likeliest] == -np.inf:
            raise NothingLeft("no token is left: the grammar, bans, allowed ids and min_tokens exclude every one")
        if self.params.temperature <= GREEDY_BELOW:
            return Distribution.point(likeliest if token_ids is None else int(token_ids[likeliest]), self.vocab_size)
        log_weights: FloatArray = row.astype(np.float64)
        log_weights -= log_weights[likeliest]
        log_weights /= self.params.temperature
        kept = keep(self.params, log_weights)
        if kept is None:
            return Distribution(log_weights, self.vocab_size, token_ids)
        return Distribution(log_weights[kept], self.vocab_size, kept if token_ids is None else token_ids[kept])

    def _shaped(self, logits: FloatArray, token_ids: IntArray | None) -> FloatArray:
        """[v] after penalties, bias, hook and masks; `logits` itself when nothing is asked."""
        shaping = self._shaping
        early = len(self._output) < self.params.min_tokens
        constrained = self._matcher is not None and self._over_at is None
        if shaping.idle and self._counts is None and not early and not constrained:
            return logits
        row: FloatArray = logits.astype(np.float64)
        if self._counts is not None:
            self._counts.penalise(row, token_ids)
        shaping.bias(row, token_ids)
        if self.params.logit_hook is not None and token_ids is None:
            row = self._hooked(row)
        shaping.exclude(row, token_ids, early=early)
        if self._matcher is not None and constrained:
            allowed = self._matcher.allowed()
            row[~(allowed if token_ids is None else allowed[token_ids])] = -np.inf
        return row

    def _hooked(self, row: FloatArray) -> FloatArray:
        assert self.params.logit_hook is not None
        hooked = np.array(self.params.logit_hook((*self._prompt, *self._output), row), dtype=np.float64)
        if hooked.shape != (self.vocab_size,):
            raise ValueError(f"logit_hook returned shape {hooked.shape} instead of ({self.vocab_size},)")
        if not hooked.max() < np.inf:
            raise FloatingPointError("logit_hook returned NaN or +inf")
        return hooked
