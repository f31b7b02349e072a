"""Our server in its own process, asked over HTTP by streaming clients on the same cores.  ours_http.py MODEL DTYPE"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from lines import Block, Said, Unavailable, Work, serve
from load import send, serving

SPECULATION = {"plain": {"speculation": "off"}, "adaptive": {}}


async def stream(port: int, work: Work, prompt: list[int]) -> Said:
    """One answer, read event by event and parsed as a client must."""
    body = {
        "prompt": prompt,
        "max_tokens": work.tokens,
        "temperature": 0.0,
        "seed": 1,
        "ignore_eos": not work.ends,
        "stream": True,
        "stream_options": {"include_usage": True},
        "decodeloop": SPECULATION[work.arm],
    }
    response, writer = await send("127.0.0.1", port, "/v1/completions", json.dumps(body).encode())
    if response.status != 200:
        raise Unavailable(f"status {response.status}: {(await response.whole())[:300]!r}")
    count, first_s, last_s, rest = 0, 0.0, 0.0, b""
    async for part in response.parts():
        *events, rest = (rest + part).split(b"\n\n")
        for event in events:
            if not event.startswith(b"data: {"):  # a comment that keeps the connection, or the end
                continue
            said: dict[str, Any] = json.loads(event[6:])
            if said.get("choices"):
                last_s = time.perf_counter()
                first_s = first_s or last_s
            if said.get("usage"):
                count = said["usage"]["completion_tokens"]
    writer.close()
    return Said([], count - 1, last_s - first_s)


class OursOverHttp:
    def __init__(self, port: int) -> None:
        self._port = port

    def __call__(self, work: Work) -> Block:
        return asyncio.run(self._all(work))

    async def _all(self, work: Work) -> Block:
        started_s = time.perf_counter()
        said = await asyncio.gather(*(stream(self._port, work, prompt) for prompt in work.prompts))
        return Block(time.perf_counter() - started_s, list(said))


def open_server(stack: ExitStack, model: str, dtype: str) -> Callable[[Work], Block]:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    log = stack.enter_context(open(f"{folder}/serve.log", "w"))  # noqa: SIM115
    options = ["--dtype", dtype, "--policy", "adaptive", "--drafters", "ngram,suffix"]
    options += ["--max-context", "2048", "--max-sequences", "16"]
    _, port = stack.enter_context(serving([model, *options], log))
    return OursOverHttp(port)


if __name__ == "__main__":
    with ExitStack() as stack:
        serve(lambda: open_server(stack, *sys.argv[1:]))
