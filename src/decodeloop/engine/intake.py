"""From a Request to its sequences: everything about a request that only the model can check."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Sequence as Run
from dataclasses import dataclass

from decodeloop.engine.sequence import Sequence
from decodeloop.engine.settings import EngineSettings
from decodeloop.engine.text import Tokenizer
from decodeloop.engine.text.chat import ChatTemplate
from decodeloop.engine.text.grammar import GrammarCompiler
from decodeloop.engine.text.output import Output
from decodeloop.engine.text.parsing import Parsing
from decodeloop.speculation.sampling import RequestChance, SamplingState
from decodeloop.types import ChatPrompt, Request, RequestRefused, SamplingParams

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that will run: its prompt in tokens, its grammar compiled, its ids checked."""

    request: Request
    tokens: tuple[int, ...]
    max_tokens: int
    state: SamplingState  # before the first token; each choice forks it
    open_output: Callable[[int], Output]


class Intake:
    """Renders, tokenises, compiles and checks. Slow (milliseconds), hence run off the event loop; thread-safe."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        parsing: Parsing,
        drafters: Run[str],
        max_context: int,
        settings: EngineSettings,
    ) -> None:
        self._tokenizer, self._template, self._parsing = tokenizer, template, parsing
        self._drafters, self._max_context, self._settings = tuple(drafters), max_context, settings
        self._grammars = GrammarCompiler(tokenizer, shown=parsing.shown)
        self._ids = itertools.count()

    def prepare(self, request: Request) -> Prepared:
        """Raises RequestRefused with the parameter that is wrong and what would be right."""
        self._check_speculation(request)
        self._check_ids(request.params)
        if request.params.logprobs is not None and not 0 <= request.params.logprobs <= MAX_LOGPROBS:
            raise RequestRefused(f"top_logprobs must be between 0 and {MAX_LOGPROBS}", param="top_logprobs")
        tokens = self._tokens(request)
        room = self._max_context - len(tokens)
        if room < 1:
            raise RequestRefused(
                f"the prompt has {len(tokens)} tokens; this model's context of {self._max_context} tokens leaves room "
                f"for prompts of at most {self._max_context - 1}",
                param="messages" if isinstance(request.prompt, ChatPrompt) else "prompt",
                code="context_length_exceeded",
            )
        wanted = request.params.max_tokens or self._settings.default_max_tokens or room
        imposed = self._parsing.grammar(request)
        matcher = None if imposed is None else self._grammars.compile(imposed.spec, param=imposed.param)
        state = SamplingState(
            request.params,
            tokens,
            vocab_size=self._tokenizer.vocab_size,
            eos_ids=self._tokenizer.eos_ids,
            matcher=matcher,
        )
        return Prepared(request, tokens, min(wanted, room), state, self._parsing.opener(request))

    def open(self, prepared: Prepared, choice: int) -> Sequence:
        request = prepared.request
        return Sequence(
            id=next(self._ids),
            request=request,
            choice=choice,
            prompt_tokens=len(prepared.tokens),
            tokens=list(prepared.tokens),
            max_tokens=prepared.max_tokens,
            eos_ids=self._tokenizer.eos_ids,
            state=prepared.state.fork(),
            chance=RequestChance.of(request.seed, prepared.tokens, choice),
            output=prepared.open_output(choice),
        )

    def _tokens(self, request: Request) -> tuple[int, ...]:
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            return tuple(self._tokenizer.encode(self._template.render(prompt), special=True))
        if isinstance(prompt, str):
            return self._with_bos(self._tokenizer.encode(prompt, special=True))
        self._check_known(prompt, "prompt")
        return self._with_bos(list(prompt)) if not prompt else tuple(prompt)

    def _with_bos(self, tokens: list[int]) -> tuple[int, ...]:
        bos = self._tokenizer.bos_id
        if bos is not None and tokens[:1] != [bos] and (self._tokenizer.add_bos or not tokens):
            tokens = [bos, *tokens]
        if not tokens:
            raise RequestRefused("the prompt is empty, and this model has no token to begin with", param="prompt")
        return tuple(tokens)

    def _check_speculation(self, request: Request) -> None:
        asked = request.speculation
        if asked.drafter is not None and asked.drafter not in self._drafters:
            choices = ", ".join(self._drafters) or "none is loaded"
            raise RequestRefused(
                f"no drafter {asked.drafter!r} here; choose from: {choices}", param="decodeloop.drafter"
            )
        most = self._settings.max_draft_len
        if asked.draft_len is not None and not 0 <= asked.draft_len <= most:
            raise RequestRefused(f"draft_len must be between 0 and {most}", param="decodeloop.draft_len")

    def _check_ids(self, params: SamplingParams) -> None:
        named = {
            "logit_bias": [token for token, _ in params.logit_bias],
            "allowed_token_ids": params.allowed_token_ids,
            "bad_token_ids": params.banned_token_ids,
            "stop_token_ids": params.stop_token_ids,
        }
        for param, ids in named.items():
            self._check_known(ids, param)

    def _check_known(self, ids: Run[int], param: str) -> None:
        size = self._tokenizer.vocab_size
        for token in ids:
            if not 0 <= token < size:
                raise RequestRefused(
                    f"{param}: token id {token} is outside the vocabulary (0..{size - 1})", param=param
                )
