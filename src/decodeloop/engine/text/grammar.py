"""Grammars that the output must follow, by llguidance: which tokens may come next."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections import OrderedDict
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from decodeloop.engine.text import Tokenizer
from decodeloop.engine.text.grammar_source import is_cheap, param_of, to_lark
from decodeloop.speculation.distribution import NothingLeft
from decodeloop.types import BoolArray, GrammarSpec, RequestRefused

MAX_CACHED = 16  # a large schema holds tens of megabytes
MAX_WORDS = 1000
TRIAL_S = 120.0  # wall, for a machine that is very busy; the trial limits its own processor time
_SCHEMA_PLACE = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: ")
_LIMITS = LLParserLimits(verbose_errors=False, step_lexer_fuel=100_000, max_lexer_states=50_000)


class GrammarMatcher:
    """A grammar's position in its text: a `TokenMatcher`. One thread at a time.

    After an end token only end tokens may come.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, eos_ids: frozenset[int]) -> None:
        self._matcher, self._vocab_size, self._eos_ids = matcher, vocab_size, eos_ids
        self._ends = 0  # end tokens accepted; llguidance is not told of them
        self._mask: BoolArray | None = None

    def allowed(self) -> BoolArray:
        """[V] bool, not to be written to: tokens that may come next, every end token among them where the text may end.

        Raises NothingLeft when following the grammar has become too expensive.
        """
        if self._mask is None:
            self._mask = self._only_ends() if self._ends else self._compute()
        return self._mask

    def accept(self, token: int) -> bool:
        """Advance over `token`; False, and no change, when it may not come next."""
        if token in self._eos_ids:
            if not self._ends and not self._matcher.is_accepting():
                return False
            self._ends += 1
        elif self._ends or not self._matcher.try_consume_tokens([token]):
            return False
        self._mask = None
        return True

    def rollback(self, count: int) -> None:
        """Undo the last `count` accepted tokens."""
        ends = min(self._ends, count)
        self._ends -= ends
        if count > ends and not self._matcher.rollback(count - ends):
            raise ValueError(f"cannot roll back {count} tokens: {_words(self._matcher)}")
        if count:
            self._mask = None

    def fork(self) -> GrammarMatcher:
        """An independent copy at the same place."""
        twin = GrammarMatcher(self._matcher.deep_copy(), self._vocab_size, self._eos_ids)
        twin._ends, twin._mask = self._ends, self._mask
        return twin

    def _compute(self) -> BoolArray:
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise NothingLeft(f"the grammar can't be followed any further: {_words(self._matcher)}")
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    def _only_ends(self) -> BoolArray:
        mask = np.zeros(self._vocab_size, dtype=np.bool_)
        mask[list(self._eos_ids)] = True
        return mask


class GrammarCompiler:
    """Compiles grammars for one tokenizer, each once. Thread-safe; takes milliseconds to seconds."""

    def __init__(self, tokenizer: Tokenizer, *, shown: frozenset[int] = frozenset()) -> None:
        """shown: control tokens that grammars see as their text, as `Detokenizer` does."""
        self._tokenizer, self._shown = tokenizer, shown
        self._compiled: OrderedDict[GrammarSpec, Future[LLMatcher]] = OrderedDict()
        self._lock = threading.Lock()
        self._trying = threading.Lock()
        self._vocabulary: tuple[_Vocabulary, LLTokenizer] | None = None

    def compile(self, spec: GrammarSpec, *, param: str | None = None) -> GrammarMatcher:
        """A matcher at the start of its text.

        param: the request field to blame, if not the one that such a spec usually comes from.

        Raises:
            RequestRefused: what `spec` says is wrong, can't be enforced, or is too expensive.
        """
        with self._lock:
            result = self._compiled.get(spec)
            ours = result is None
            if result is None:
                result = self._compiled[spec] = Future()
                if len(self._compiled) > MAX_CACHED:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(spec)
        if ours:
            self._settle(result, spec, param or param_of(spec))
        try:
            matcher = result.result()
        except RequestRefused as refusal:
            raise RequestRefused(refusal.message, param=param or refusal.param) from None
        return GrammarMatcher(matcher.deep_copy(), self._tokenizer.vocab_size, self._tokenizer.eos_ids)

    def _settle(self, result: Future[LLMatcher], spec: GrammarSpec, param: str) -> None:
        try:
            result.set_result(self._compile(spec, param))
        except BaseException as error:
            if not isinstance(error, RequestRefused):
                with self._lock:
                    self._compiled.pop(spec, None)
            result.set_exception(error)

    def _compile(self, spec: GrammarSpec, param: str) -> LLMatcher:
        try:
            source, cheap = to_lark(spec, param=param), is_cheap(spec)
        except RecursionError:
            raise RequestRefused("the schema is nested too deeply", param=param) from None
        vocabulary, tokenizer = self._opened()
        if not cheap:
            with self._trying:
                _try_compiling(source, vocabulary, param)
        matcher = LLMatcher(tokenizer, source, log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()  # the first mask is the dearest
        if matcher.is_error():
            raise RequestRefused(_words(matcher), param=param)
        return matcher

    def _opened(self) -> tuple[_Vocabulary, LLTokenizer]:
        with self._lock:
            if self._vocabulary is None:
                vocabulary = _Vocabulary(self._tokenizer, self._shown)
                ends = sorted(self._tokenizer.eos_ids)
                self._vocabulary = vocabulary, LLTokenizer(TokenizerWrapper(vocabulary), eos_token=ends)
            return self._vocabulary


class _Vocabulary:
    """A `Tokenizer` as llguidance wants it."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, shown: frozenset[int]) -> None:
        ids = range(tokenizer.vocab_size)
        self.special_token_ids = [token for token in ids if tokenizer.is_special(token) and token not in shown]
        named = shown.union(self.special_token_ids)
        self.tokens = [
            (tokenizer.token_text(token).encode() or b"<unused %d>" % token)
            if token in named
            else tokenizer.token_bytes(token)
            for token in ids
        ]
        self.eos_token_id = min(tokenizer.eos_ids)
        self._encode = tokenizer.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode(errors="replace"))


def _try_compiling(source: str, vocabulary: _Vocabulary, param: str) -> None:
    """Compile in a process that can be stopped; raises RequestRefused with what came of it."""
    special = [(token, vocabulary.tokens[token].decode()) for token in vocabulary.special_token_ids]
    asked = json.dumps({"grammar": source, "vocab_size": len(vocabulary.tokens), "special": special})
    program = [sys.executable, "-P", str(Path(__file__).with_name("grammar_trial.py"))]
    try:
        trial = subprocess.run(program, input=asked, capture_output=True, text=True, timeout=TRIAL_S, check=False)
    except subprocess.TimeoutExpired:
        raise RequestRefused("the grammar is too expensive to compile", param=param) from None
    if trial.returncode < 0 or "memory allocation" in trial.stderr or "MemoryError" in trial.stderr:
        raise RequestRefused("the grammar is too expensive to compile", param=param)
    if trial.returncode:
        raise RuntimeError(f"the grammar trial failed: {trial.stderr[-500:]}")
    if trial.stdout:
        raise RequestRefused(_clean(trial.stdout), param=param)


def _words(matcher: LLMatcher) -> str:
    return _clean(matcher.get_error())


def _clean(error: str) -> str:
    """llguidance's words, without the copy of the grammar after them and a place in rules that aren't the user's."""
    words = error.split("\n<non-verbose/>", maxsplit=1)[0].split("\n   1 | ", maxsplit=1)[0]
    return _SCHEMA_PLACE.sub("", words).strip()[:MAX_WORDS]
