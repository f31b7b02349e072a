"""A server with OpenAI's API that says the same to everyone, as fast as a socket takes it: no model behind it.

python benchmarks/mock_openai.py PORT

The `user` field of a body says how: `chunks=N` events of a stream, `gap_ms=G` between them. A benchmark's set-up.
"""

from __future__ import annotations

import asyncio
import json
import sys

MODEL = "mock"


def _event(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def _chunk(**more: object) -> dict[str, object]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [], **more}


def _choice(delta: dict[str, str], reason: str | None) -> list[dict[str, object]]:
    return [{"index": 0, "delta": delta, "finish_reason": reason}]


USAGE = {"prompt_tokens": 20, "completion_tokens": 30, "total_tokens": 50}
WORD = _event(_chunk(choices=_choice({"content": "speculative "}, None), usage=None))
END = _event(_chunk(choices=_choice({}, "stop"), usage=None)) + _event(_chunk(usage=USAGE)) + _event(b"[DONE]")
WHOLE = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes " * 30}, "finish_reason": "stop"}],
        "usage": USAGE,
    }
).encode()
MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 8192}]}).encode()


class Mock(asyncio.Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport, self.held = transport, b""
        self.stream: asyncio.Task[None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.stream is not None:
            self.stream.cancel()

    def data_received(self, data: bytes) -> None:
        self.held += data
        while True:
            head, found, rest = self.held.partition(b"\r\n\r\n")
            if not found:
                return
            length = _length(head)
            if len(rest) < length:
                return
            self.held = rest[length:]
            self._answer(head, rest[:length])

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            self._whole(MODELS)
            return
        asked = json.loads(body)
        if not asked.get("stream"):
            self._whole(WHOLE)
            return
        how = dict(part.split("=") for part in str(asked.get("user") or "").split() if "=" in part)
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        self.stream = asyncio.get_running_loop().create_task(
            self._stream(int(how.get("chunks", 20)), float(how.get("gap_ms", 0)) / 1e3)
        )

    async def _stream(self, chunks: int, gap_s: float) -> None:
        for _ in range(chunks):
            self._piece(WORD)
            await asyncio.sleep(gap_s)
        self._piece(END)
        self.transport.write(b"0\r\n\r\n")

    def _piece(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _whole(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(head + body)


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Mock, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(int(sys.argv[1])))
