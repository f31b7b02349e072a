"""The one place where accepted tokens become output. It walks them one at a time."""

from __future__ import annotations

from dataclasses import dataclass

from decodeloop.engine.rows import VerifyRows
from decodeloop.engine.sequence import Sequence
from decodeloop.engine.text import Tokenizer
from decodeloop.engine.text.output import TextDelta
from decodeloop.speculation.block import Verdict
from decodeloop.types import Chunk, Commit, FinishReason, TokenLogprob


@dataclass(frozen=True, slots=True)
class Committed:
    """commit: what the verdict came to. chunks: what its reader gets, in order."""

    commit: Commit
    chunks: tuple[Chunk, ...]


def commit(sequence: Sequence, verdict: Verdict, rows: VerifyRows, tokenizer: Tokenizer) -> Committed:
    """Advance the real sampling state, text, log-probabilities and lengths over the verdict, up to the first end.

    An end token or stop string wins over `length`. What follows the end is discarded: it is neither text, id, usage nor
    anything a later turn could find in the cache.
    """
    before, asked = len(sequence.tokens), sequence.request.params.logprobs
    chunks = []
    for i, token in enumerate(verdict.emitted):
        sequence.state.advance(token)
        sequence.tokens.append(token)
        if asked is not None:
            sequence.undelivered.append(rows.logprob(i, token, asked, tokenizer))
        delta = sequence.output.push(token)
        _decide_end(sequence, token, delta.stopped)
        chunks.append(_deliver(sequence, delta))
        if sequence.finish_reason is not None:
            if delta.stopped is None:
                chunks.append(_deliver(sequence, sequence.output.finish()))
            break
    taken = len(sequence.tokens) - before
    sequence.computed = before + min(verdict.accepted, taken)
    outcome = Commit(verdict.emitted[:taken], len(verdict.emitted) - taken, sequence.finish_reason)
    return Committed(outcome, tuple(chunk for chunk in chunks if _says_something(chunk)))


def _decide_end(sequence: Sequence, token: int, stopped: str | None) -> None:
    params = sequence.request.params
    if stopped is not None:
        sequence.finish_reason, sequence.stop_reason = FinishReason.STOP, stopped
    elif token in params.stop_token_ids:
        sequence.finish_reason, sequence.stop_reason = FinishReason.STOP, token
    elif token in sequence.eos_ids and not (params.ignore_eos and params.grammar is None):
        sequence.finish_reason = FinishReason.STOP
    elif sequence.output_tokens >= sequence.max_tokens:
        sequence.finish_reason = FinishReason.LENGTH


def _deliver(sequence: Sequence, delta: TextDelta) -> Chunk:
    """The chunk of `delta`: the tokens that come out with its text, and their log-probabilities."""
    start = sequence.prompt_tokens + sequence.tally.delivered
    sequence.tally.delivered += delta.tokens
    logprobs: tuple[TokenLogprob, ...] = ()
    if sequence.request.params.logprobs is not None:
        logprobs = tuple(sequence.undelivered.popleft() for _ in range(delta.tokens))
    return Chunk(
        index=sequence.choice,
        text=delta.text,
        reasoning=delta.reasoning,
        tool_calls=delta.tool_calls,
        token_ids=tuple(sequence.tokens[start : start + delta.tokens]),
        logprobs=logprobs,
    )


def _says_something(chunk: Chunk) -> bool:
    return bool(chunk.text or chunk.reasoning or chunk.tool_calls or chunk.token_ids)


def close(sequence: Sequence, reason: FinishReason) -> tuple[Chunk, ...]:
    """End a sequence from outside. At a deadline what was held back is handed over; else nobody reads it any more."""
    chunks = (_deliver(sequence, sequence.output.finish()),) if reason is FinishReason.DEADLINE else ()
    sequence.finish_reason = reason
    return tuple(chunk for chunk in chunks if _says_something(chunk))
