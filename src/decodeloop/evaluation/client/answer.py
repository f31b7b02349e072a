"""A streamed answer, read after it has ended: pieces with their times and sizes, and what the server tells of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from decodeloop.evaluation.client.http import Reply
from decodeloop.evaluation.results import Drafting, PhaseTimes
from decodeloop.evaluation.workload import repeated

TIMES = ("queue_ms", "prefill_ms", "draft_ms", "verify_ms", "sample_ms", "overhead_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The fields of a RequestResult that an answer gives; times are of the client's clock, absolute."""

    sent_s: float
    ended_s: float
    chunk_s: tuple[float, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    exact_chunks: bool = True
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int = 0
    drafting: Drafting | None = None
    drafter: str | None = None
    times: PhaseTimes | None = None
    seed: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    text: str = ""
    token_ids: tuple[int, ...] = ()  # () where they aren't told

    @property
    def text_hash(self) -> str:
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def loops(self) -> bool:
        if self.token_ids:
            return repeated(self.token_ids)
        numbers: dict[str, int] = {}
        return repeated([numbers.setdefault(word, len(numbers)) for word in self.text.split()])


class CutOff(asyncio.CancelledError):
    """Serving was cancelled; answer: what had come by then."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


@dataclass(slots=True)
class _Reading:
    """What the events so far have said."""

    stamps: list[float] = field(default_factory=list)
    sizes: list[int | None] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    counted: int = 0  # tokens, by the running totals
    usage: Mapping[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    error: str | None = None
    done: bool = False


def read_answer(reply: Reply) -> Answer:
    """Of a streamed completion; a refusal, a failure on the way and a stream that breaks off give an `error`."""
    if reply.status != 200:
        return Answer(sent_s=reply.sent_s, ended_s=reply.ended_s, error=refusal(reply.status, reply.body))
    reading = _Reading()
    for at_s, data in events(reply.pieces):
        if data == b"[DONE]":
            reading.done = True
            break
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            reading.error = f"an event is not JSON: {data[:80]!r}"
            break
        if event.get("error"):
            reading.error = _message(event["error"])
            break
        _take(reading, at_s, event)
    if reading.error is None and not reading.done and reading.finish_reason is None:
        reading.error = "the stream ended before the answer did"
    return _answer(reply, reading)


def events(pieces: Iterable[tuple[float, bytes]]) -> Iterable[tuple[float, bytes]]:
    """Server-sent events' data, each with the time at which it was complete."""
    rest = b""
    for at_s, piece in pieces:
        rest += piece
        if b"\r" in rest:
            rest = rest.replace(b"\r\n", b"\n")
        *whole, rest = rest.split(b"\n\n")
        for block in whole:
            data = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
            if data:
                yield at_s, b"\n".join(data)


def refusal(status: int, body: bytes) -> str:
    try:
        said = _message(orjson.loads(body).get("error"))
    except (orjson.JSONDecodeError, AttributeError):
        said = body[:200].decode(errors="replace")
    return f"HTTP {status}: {said}"


def _message(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, Mapping) else error)[:300]


def _take(reading: _Reading, at_s: float, event: Mapping[str, Any]) -> None:
    for name in ("metrics", "decodeloop", "timings"):
        if event.get(name):
            reading.extra[name] = event[name]
    usage = event.get("usage") or {}
    if "completion_tokens" in usage:
        reading.usage = usage
    choices = event.get("choices") or ()
    if not choices:
        return
    choice = choices[0]
    reading.finish_reason = choice.get("finish_reason") or reading.finish_reason
    said = _said(choice)
    if said or choice.get("token_ids"):  # running totals may run ahead: in an event of the role alone
        reading.text += said
        size = _size(reading, choice, usage, event.get("timings") or {})
        reading.stamps.append(at_s)
        reading.sizes.append(size)


def _said(choice: Mapping[str, Any]) -> list[str]:
    """Every text of an event: content, reasoning, pieces of tool calls."""
    delta = choice.get("delta") or {}
    texts = [delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content"), choice.get("text")]
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        texts += [function.get("name"), function.get("arguments")]
    return [text for text in texts if text]


def _size(
    reading: _Reading, choice: Mapping[str, Any], usage: Mapping[str, Any], timings: Mapping[str, Any]
) -> int | None:
    """Tokens of this event: by their ids, else by a running total; None: not told."""
    ids = choice.get("token_ids")
    if ids is not None:
        reading.token_ids += ids
        return len(ids)
    total = usage.get("completion_tokens", timings.get("predicted_n"))
    if total is None:
        return None
    more, reading.counted = int(total) - reading.counted, int(total)
    return more


def _answer(reply: Reply, reading: _Reading) -> Answer:
    usage, own = reading.usage, reading.extra.get("decodeloop") or {}
    told = sum(size or 0 for size in reading.sizes)
    completion = int(usage.get("completion_tokens", told or len(reading.stamps)))
    exact = bool(reading.sizes) and all(size is not None for size in reading.sizes)
    sizes = [size or 0 for size in reading.sizes] if exact else spread(completion, len(reading.stamps))
    return Answer(
        sent_s=reply.sent_s,
        ended_s=reply.ended_s,
        chunk_s=tuple(reading.stamps),
        chunk_tokens=tuple(sizes),
        exact_chunks=exact or not reading.stamps,
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        completion_tokens=completion,
        drafting=read_drafting(reading.extra),
        drafter=own.get("drafter"),
        times=PhaseTimes(**{name: float(own[name]) for name in TIMES if name in own}) if own else None,
        seed=own.get("seed"),
        finish_reason=reading.finish_reason,
        error=reading.error,
        text="".join(reading.text),
        token_ids=tuple(reading.token_ids),
    )


def spread(tokens: int, pieces: int) -> list[int]:
    """`tokens` over `pieces` as evenly as whole numbers go."""
    return [tokens * (i + 1) // pieces - tokens * i // pieces for i in range(pieces)]


def read_drafting(extra: Mapping[str, Any]) -> Drafting | None:
    """From our own account, vLLM's per-request metrics or llama.cpp's timings; None: not told."""
    own = extra.get("decodeloop")
    theirs = (extra.get("metrics") or {}).get("speculative_decoding")
    timings = extra.get("timings") or {}
    if theirs:
        return Drafting(
            drafts=int(theirs["num_spec_steps"]),
            verified=int(theirs["num_draft_tokens"]),
            accepted=int(theirs["num_accepted_draft_tokens"]),
            accepted_histogram=_counts(theirs.get("acceptance_histogram")),
            **({name: own[name] for name in ("drafted", "steps", "discarded")} if own else {}),
        )
    if own:  # it would be there had a draft been verified
        return Drafting(drafts=0, verified=0, accepted=0, **{k: own[k] for k in ("drafted", "steps", "discarded")})
    if "draft_n" in timings:
        drafted, accepted = int(timings["draft_n"]), int(timings.get("draft_n_accepted", 0))
        return Drafting(drafts=None, verified=drafted, accepted=accepted, drafted=drafted)
    return None


def _counts(found: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(int(count) for count in found or ())
