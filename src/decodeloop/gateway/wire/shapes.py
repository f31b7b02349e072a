"""How each API writes a choice: whole, and as the pieces of a stream."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, Protocol

from decodeloop.types import Chunk, TokenLogprob, ToolCallDelta

__all__ = ["ChatShape", "CompletionShape", "Shape", "joined"]

LEAST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI's number for "practically impossible"


class Shape(Protocol):
    """One answer's; `logprobs` says whether they were asked for."""

    object: str
    chunk_object: str

    def opening(self) -> dict[str, Any] | None:
        """What a stream says of a choice before its first piece."""
        ...

    def piece(self, chunk: Chunk) -> dict[str, Any]:
        """The part of a streamed choice beside index and finish_reason."""
        ...

    def whole(self, chunk: Chunk) -> dict[str, Any]:
        """The same of a finished choice; `chunk` is all of its pieces joined."""
        ...


class ChatShape:
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, *, logprobs: bool) -> None:
        self._logprobs = logprobs

    def opening(self) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def piece(self, chunk: Chunk) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if chunk.reasoning:
            delta["reasoning_content"] = delta["reasoning"] = chunk.reasoning
        if chunk.text:
            delta["content"] = chunk.text
        if chunk.tool_calls:
            delta["tool_calls"] = [_call_delta(call) for call in chunk.tool_calls]
        return {"delta": delta, "logprobs": self._logprobs_of(chunk)}

    def whole(self, chunk: Chunk) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": chunk.text or None, "refusal": None}
        if not chunk.text and not chunk.tool_calls:
            message["content"] = ""
        if chunk.reasoning:
            message["reasoning_content"] = message["reasoning"] = chunk.reasoning
        if chunk.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in chunk.tool_calls
            ]
        return {"message": message, "logprobs": self._logprobs_of(chunk)}

    def _logprobs_of(self, chunk: Chunk) -> dict[str, Any] | None:
        if not self._logprobs or not chunk.logprobs:
            return None
        content = [
            {**_chat_logprob(token), "top_logprobs": [_chat_logprob(other) for other in token.top]}
            for token in chunk.logprobs
        ]
        return {"content": content, "refusal": None}


class CompletionShape:
    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, *, logprobs: bool) -> None:
        self._logprobs = logprobs
        self._texts: dict[int, _Offsets] = {}

    def opening(self) -> dict[str, Any] | None:
        return None

    def piece(self, chunk: Chunk) -> dict[str, Any]:
        return {"text": chunk.text, "logprobs": self._logprobs_of(chunk)}

    def whole(self, chunk: Chunk) -> dict[str, Any]:
        return self.piece(chunk)

    def _logprobs_of(self, chunk: Chunk) -> dict[str, Any] | None:
        if not self._logprobs or not chunk.logprobs:
            return None
        offsets = self._texts.setdefault(chunk.index, _Offsets())
        return {
            "tokens": [token.token for token in chunk.logprobs],
            "token_logprobs": [_finite(token.logprob) for token in chunk.logprobs],
            "top_logprobs": [_completion_top(token) for token in chunk.logprobs],
            "text_offset": [offsets.after(token.token_bytes) for token in chunk.logprobs],
        }


class _Offsets:
    """Where each token of a choice begins, in characters of its text; a split character begins with its first byte."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def after(self, token: bytes) -> int:
        """The offset of the next token, whose bytes are `token`."""
        offset = self._characters
        self._characters += len(self._decoder.decode(token))
        return offset


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """All pieces of one choice as one."""
    return Chunk(
        index=chunks[0].index,
        text="".join([chunk.text for chunk in chunks]),
        reasoning="".join([chunk.reasoning for chunk in chunks]),
        tool_calls=_joined_calls([call for chunk in chunks for call in chunk.tool_calls]),
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        logprobs=tuple(token for chunk in chunks for token in chunk.logprobs),
        finish_reason=next((chunk.finish_reason for chunk in chunks if chunk.finish_reason is not None), None),
        stop_reason=next((chunk.stop_reason for chunk in chunks if chunk.stop_reason is not None), None),
    )


def _joined_calls(deltas: Sequence[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    by_index: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    return tuple(
        ToolCallDelta(
            index,
            next((piece.id for piece in pieces if piece.id is not None), None),
            next((piece.name for piece in pieces if piece.name is not None), None),
            "".join([piece.arguments for piece in pieces]),
        )
        for index, pieces in sorted(by_index.items())
    )


def _call_delta(call: ToolCallDelta) -> dict[str, Any]:
    if call.name is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {
        "index": call.index,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _chat_logprob(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": _finite(token.logprob), "bytes": list(token.token_bytes)}


def _completion_top(token: TokenLogprob) -> dict[str, float]:
    return {other.token: _finite(other.logprob) for other in (*token.top, token)}


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
