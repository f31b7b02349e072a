"""An answer in the making: chunks in, OpenAI's JSON out, streamed or whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson

from decodeloop.gateway.wire.accounts import (
    decodeloop_object,
    merged_reports,
    metrics_object,
    summed_usage,
    usage_object,
)
from decodeloop.gateway.wire.parse import Call
from decodeloop.gateway.wire.shapes import Shape, joined
from decodeloop.types import Chunk, FinishReason, Report, RequestRefused, Usage

__all__ = ["DONE", "Answer", "event"]

DONE = b"data: [DONE]\n\n"

FINISH_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
    FinishReason.DEADLINE: "length",  # clients know no other word for "cut short"; `decodeloop` tells the true one
}


def event(value: Any) -> bytes:
    """`value` as one server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


class Answer:
    """One HTTP request's. Chunks come with their place among all its choices (prompt times n) as index."""

    def __init__(self, call: Call, shape: Shape, *, created: int) -> None:
        self._call, self._shape, self._created = call, shape, created
        self._finished: list[FinishReason | None] = [None] * call.choices
        self._opened: set[int] = set()
        self._usages: dict[int, Usage] = {}  # by prompt
        self._reports: dict[int, Report] = {}
        self._completion_tokens = 0

    def admit(self, chunk: Chunk) -> Chunk:
        """Count a chunk; what comes back is what the client may see of it.

        Raises:
            RequestRefused: the chunk says that the engine failed or gave up.
        """
        reason = chunk.finish_reason
        if reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise RequestRefused(
                "the engine failed on this request" if reason is FinishReason.ERROR else "the request was aborted",
                status=500 if reason is FinishReason.ERROR else 503,
            )
        if reason is not None:
            self._finished[chunk.index] = reason
        prompt = chunk.index // self._call.requests[0].n
        if chunk.usage is not None:
            self._usages[prompt] = chunk.usage
        if chunk.report is not None:
            self._reports[prompt] = chunk.report
        self._completion_tokens += len(chunk.token_ids)
        if chunk.tool_calls and not self._call.parallel_tool_calls:
            return replace(chunk, tool_calls=tuple(call for call in chunk.tool_calls if call.index == 0))
        return chunk

    def check_complete(self) -> None:
        """Raises RequestRefused when the upstream ended before every choice did."""
        if None in self._finished:
            raise RequestRefused("the engine ended this answer early", status=502)

    def cut(self, usage: Usage) -> Iterator[Chunk]:
        """The last chunks of the choices that are still open, when an answer ends before its engine is done.

        usage: of all of it.
        """
        self._usages = {0: usage}
        for choice in [choice for choice, reason in enumerate(self._finished) if reason is None]:
            yield Chunk(index=choice, finish_reason=FinishReason.LENGTH)

    def events(self, chunk: Chunk) -> bytes:
        """An admitted chunk as events of a stream; empty when it has nothing to say yet."""
        last = chunk.report is not None and len(self._reports) == len(self._call.requests)
        speaks = chunk.text or chunk.reasoning or chunk.tool_calls or chunk.finish_reason is not None
        shown = (chunk.logprobs and self._call.logprobs) or (chunk.token_ids and self._call.token_ids)
        if not (speaks or shown or (last and not self._call.include_usage)):
            return b""
        choice = self._choice(chunk, self._shape.piece(chunk))
        extra = self._accounts() if last and not self._call.include_usage else {}
        return self._opening(chunk.index) + self._chunk_event([choice], extra)

    def last_events(self) -> bytes:
        """What a stream ends with."""
        if not self._call.include_usage:
            return DONE
        usage = self._usage()
        final = {"usage": None if usage is None else usage_object(usage), **self._accounts()}
        return event({**self._envelope(self._shape.chunk_object), "choices": [], **final}) + DONE

    def body(self, chunks: list[Chunk]) -> bytes:
        """The whole answer, of all admitted chunks."""
        by_choice: list[list[Chunk]] = [[] for _ in self._finished]
        for chunk in chunks:
            by_choice[chunk.index].append(chunk)
        wholes = (joined(pieces) for pieces in by_choice)
        usage = self._usage()
        return orjson.dumps(
            {
                **self._envelope(self._shape.object),
                "choices": [self._choice(whole, self._shape.whole(whole)) for whole in wholes],
                "usage": None if usage is None else usage_object(usage),
                **self._accounts(),
            }
        )

    def _opening(self, index: int) -> bytes:
        if index in self._opened:
            return b""
        self._opened.add(index)
        opening = self._shape.opening()
        return b"" if opening is None else self._chunk_event([{"index": index, **opening, "finish_reason": None}], {})

    def _choice(self, chunk: Chunk, content: dict[str, Any]) -> dict[str, Any]:
        reason = chunk.finish_reason
        choice = {"index": chunk.index, **content, "finish_reason": None if reason is None else FINISH_REASONS[reason]}
        if reason is not None:
            choice["stop_reason"] = chunk.stop_reason
        if self._call.token_ids:
            choice["token_ids"] = list(chunk.token_ids)
        return choice

    def _chunk_event(self, choices: list[dict[str, Any]], extra: dict[str, Any]) -> bytes:
        value = {**self._envelope(self._shape.chunk_object), "choices": choices, **extra}
        if self._call.include_usage:
            value["usage"] = usage_object(self._usage_so_far()) if self._call.continuous_usage else None
        return event(value)

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self._call.id, "object": kind, "created": self._created, "model": self._call.model}

    def _usage(self) -> Usage | None:
        return summed_usage(list(self._usages.values())) if self._usages else None

    def _usage_so_far(self) -> Usage:
        return replace(self._usage() or Usage(), completion=self._completion_tokens)

    def _accounts(self) -> dict[str, Any]:
        return dict(self._account_items())

    def _account_items(self) -> Iterator[tuple[str, Any]]:
        if not self._reports:
            return
        report = merged_reports(list(self._reports.values()))
        metrics = metrics_object(report) if self._call.choices == 1 else None
        if metrics is not None:
            yield "metrics", metrics
        yield "decodeloop", decodeloop_object(report, self._finished)
