"""Does the server stay whole under load?  python benchmarks/load.py [--minutes 3] [--clients 64] [-- SERVE OPTIONS]

Starts `decodeloop serve` and lets many clients stream from it, among them those that leave, send nonsense, ask too
much, or read slowly. Afterwards: no error that isn't a client's own, every KV block free, nothing in flight, memory
flat (second half against first half), threads and file descriptors back to where they were. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import psutil

MIB = 1 << 20
PATIENCE_S = 600.0
TEXT = "the cat sat on a mat and wrote def add(a, b): return a + b; 猫 and 🎉 looked on; příliš žluťoučký kůň"
WORDS = TEXT.split()
SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["cat", "dog", "🐎"]}},
    "required": ["id", "kind"],
    "additionalProperties": False,
}


class Violation(Exception):
    """The server did what it must not."""


@dataclass(frozen=True)
class Ask:
    """One request and what must come of it. leave_after: events after which the client hangs up; None: it stays."""

    path: str
    body: bytes
    statuses: tuple[int, ...] = (200,)
    code: str | None = None
    leave_after: int | None = None
    pause_s: float = 0.0  # before each read
    check: Callable[[list[dict[str, Any]]], None] | None = None


@dataclass
class Response:
    status: int
    reader: asyncio.StreamReader
    chunked: bool
    length: int

    async def whole(self) -> bytes:
        return b"".join([part async for part in self.parts()])

    async def parts(self) -> AsyncIterator[bytes]:
        if not self.chunked:
            yield await self.reader.readexactly(self.length)
            return
        while size := int(await self.reader.readline(), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()


async def send(host: str, port: int, path: str, body: bytes | None) -> tuple[Response, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(host, port)
    method = "GET" if body is None else "POST"
    head = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
    if body is not None:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"\r\n" + (body or b""))
    status = int((await reader.readline()).split()[1])
    headers = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    chunked = headers.get("transfer-encoding") == "chunked"
    return Response(status, reader, chunked, int(headers.get("content-length", 0))), writer


async def perform(host: str, port: int, ask: Ask) -> None:
    """Raises Violation."""
    response, writer = await send(host, port, ask.path, ask.body)
    try:
        if response.status != 200 and response.status not in ask.statuses:
            raise Violation(f"status {response.status}: {(await response.whole())[:300]!r}")
        if response.chunked:
            await follow(response, ask)
            return
        answer = json.loads(await response.whole())
        if response.status != 200:
            refused(answer["error"], ask)
        elif ask.statuses != (200,):
            raise Violation(f"answered, where {ask.statuses} was due")
        elif ask.check is not None:
            ask.check([answer])
    finally:
        writer.close()


def refused(error: dict[str, Any], ask: Ask) -> None:
    if ask.statuses == (200,) or (ask.code is not None and error["code"] != ask.code):
        raise Violation(f"refused: {error}")


async def follow(response: Response, ask: Ask) -> None:
    text, events = "", []
    async for part in response.parts():
        text += part.decode()  # a chunk holds whole events, hence whole characters
        while "\n\n" in text:
            line, text = text.split("\n\n", maxsplit=1)
            if line.startswith(":"):
                continue
            if line == "data: [DONE]":
                if ask.check is not None:
                    ask.check(events)
                return
            events.append(json.loads(line.removeprefix("data: ")))
            if "error" in events[-1]:  # a refusal found out only after heartbeats
                refused(events[-1]["error"], ask)
                return
            if ask.leave_after is not None and len(events) > ask.leave_after:
                return
        await asyncio.sleep(ask.pause_s)
    raise Violation(f"the stream ended after {len(events)} events without [DONE]")


class Mix:
    """Draws requests: good ones of every kind, and all the others that a public server gets."""

    def __init__(self, draw: random.Random, *, context: int, max_tokens: int) -> None:
        self._draw, self._context, self._max_tokens = draw, context, max_tokens
        self._kinds: dict[str, tuple[int, Callable[[], Ask]]] = {
            "chat": (24, self._chat),
            "completion": (16, self._completion),
            "choices": (8, self._choices),
            "json": (8, self._json),
            "leaver": (16, self._leaver),
            "leaver at once": (4, lambda: self._chat(leave_after=0)),
            "slow reader": (3, lambda: self._chat(pause_s=0.05)),
            "too long": (5, self._too_long),
            "bad json": (5, self._bad_json),
            "wrong field": (8, self._wrong_field),
            "impossible": (3, self._impossible),
        }

    def kinds(self) -> list[str]:
        return list(self._kinds)

    def next(self, kind: str | None = None) -> tuple[str, Ask]:
        if kind is None:
            kind = self._draw.choices(list(self._kinds), [weight for weight, _ in self._kinds.values()])[0]
        return kind, self._kinds[kind][1]()

    def _text(self, most: int = 40) -> str:
        words = self._draw.choices(WORDS, k=self._draw.randrange(1, most))
        return " ".join(words * self._draw.choice((1, 1, 3)))[: self._context // 2]

    def _body(self, **fields: Any) -> dict[str, Any]:
        draw = self._draw
        body = {"stream": True, "max_tokens": draw.randrange(1, self._max_tokens + 1), **fields}
        options = {
            "temperature": draw.choice((0, 0.7, 1.0, 1.5)),
            "top_p": draw.choice((0.5, 0.9)),
            "top_k": draw.choice((1, 5, 50)),
            "min_p": 0.05,
            "frequency_penalty": 0.5,
            "repetition_penalty": 1.2,
            "stop": draw.choice((["."], ["cat", "\n"], "🎉")),
            "seed": draw.randrange(2**53),
            "stream_options": {"include_usage": True, "continuous_usage_stats": draw.random() < 0.5},
            "decodeloop": draw.choice(
                (
                    {"speculation": "off"},
                    {"speculation": "force", "draft_len": 8},
                    {"deadline_ms": 3000},
                    {"priority": "batch"},
                )
            ),
        }
        for name in draw.sample(list(options), k=draw.randrange(len(options))):
            if name != "stream_options" or body["stream"]:
                body.setdefault(name, options[name])
        return body

    def _chat(self, **how: Any) -> Ask:
        body = self._body(messages=[{"role": "user", "content": self._text()}], stream=self._draw.random() < 0.85)
        check = None if "leave_after" in how else finishes(1, body["max_tokens"])
        return Ask("/v1/chat/completions", encoded(body), check=check, **how)

    def _completion(self) -> Ask:
        body = self._body(prompt=self._text(), logprobs=self._draw.choice((None, 0, 5)))
        return Ask("/v1/completions", encoded(body), check=finishes(1, body["max_tokens"]))

    def _choices(self) -> Ask:
        n, prompts = self._draw.randrange(1, 4), self._draw.randrange(1, 3)
        body = self._body(prompt=[self._text(10) for _ in range(prompts)], n=n)
        return Ask("/v1/completions", encoded(body), check=finishes(n * prompts, body["max_tokens"]))

    def _json(self) -> Ask:
        wanted = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA}}
        body = self._body(
            messages=[{"role": "user", "content": self._text()}], response_format=wanted, max_tokens=64, stop=[]
        )
        return Ask("/v1/chat/completions", encoded(body), check=is_json)

    def _leaver(self) -> Ask:
        return self._chat(leave_after=self._draw.randrange(1, 12))

    def _too_long(self) -> Ask:
        length = self._context + self._draw.choice((0, 1, 1000))
        body = {"prompt": [5] * length, "stream": self._draw.random() < 0.5}
        return Ask("/v1/completions", encoded(body), (400,), "context_length_exceeded")

    def _bad_json(self) -> Ask:
        whole = encoded(self._body(prompt=self._text()))
        cut = whole[: self._draw.randrange(len(whole))]
        return Ask("/v1/completions", self._draw.choice((cut, b"", b"\xff\xfe{}", b"[1, 2]", b'{"a":' * 500)), (400,))

    def _wrong_field(self) -> Ask:
        wrong: list[tuple[dict[str, Any], int]] = [
            ({"temperature": -1}, 400),
            ({"n": 10**6}, 400),
            ({"max_tokens": 0}, 400),
            ({"logit_bias": {"99999999": 1}}, 400),
            ({"seed": 2**60}, 400),
            ({"stop": ["x" * 5000]}, 400),
            ({"prompt": [10**9]}, 400),
            ({"decodeloop": {"drafter": "nobody"}}, 400),
            ({"no_such_field": 1}, 400),
            ({"model": "nobody"}, 404),
        ]
        fields, status = self._draw.choice(wrong)
        return Ask("/v1/completions", encoded({**self._body(prompt=self._text()), **fields}), (status,))

    def _impossible(self) -> Ask:
        """Everything excluded by the request itself: found out at the first row."""
        body = {"prompt": self._text(), "allowed_token_ids": [7], "bad_token_ids": [7], "stream": True}
        return Ask("/v1/completions", encoded(body), (400,), "nothing_left")


def encoded(body: dict[str, Any]) -> bytes:
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


def finishes(choices: int, max_tokens: int) -> Callable[[list[dict[str, Any]]], None]:
    """Every choice ends once, usage is within what was asked, and no character was broken."""

    def check(events: list[dict[str, Any]]) -> None:
        ends = Counter(c["index"] for e in events for c in e["choices"] if c["finish_reason"] is not None)
        if ends != Counter(range(choices)):
            raise Violation(f"{choices} choices, ends {dict(ends)}")
        usages = [event["usage"] for event in events if event.get("usage")]
        if usages and usages[-1]["completion_tokens"] > choices * max_tokens:
            raise Violation(f"usage {usages[-1]} with max_tokens {max_tokens}")

    return check


def is_json(events: list[dict[str, Any]]) -> None:
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join((c.get("delta") or c.get("message") or {}).get("content") or "" for c in choices)
    if any(choice["finish_reason"] == "stop" for choice in choices) and set(json.loads(text)) != {"id", "kind"}:
        raise Violation(f"{text!r} is not what the schema says")


@dataclass(frozen=True)
class Footprint:
    rss_mib: float
    threads: int
    fds: int

    @classmethod
    def of(cls, process: psutil.Process) -> Footprint:
        with process.oneshot():
            return cls(process.memory_info().rss / MIB, process.num_threads(), process.num_fds())


@dataclass
class Load:
    """One run. violations: what the server did wrong, with its request's kind."""

    host: str
    port: int
    process: psutil.Process
    mix: Mix
    done: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    footprints: list[Footprint] = field(default_factory=list)

    async def run(self, clients: int, seconds: float) -> None:
        await self._warm_up()
        idle = await self._settled()
        ends_s = time.monotonic() + seconds
        watch = asyncio.create_task(self._watch(seconds / 120))
        await asyncio.gather(*(self._client(ends_s) for _ in range(clients)))
        watch.cancel()
        after = await self._settled()
        self._compare(idle, after)

    async def _warm_up(self) -> None:
        """Every kind, several at once: what is opened once is open."""
        for kind in self.mix.kinds():
            await asyncio.gather(*(self._one(*self.mix.next(kind)) for _ in range(8)))

    async def _client(self, ends_s: float) -> None:
        while time.monotonic() < ends_s and len(self.violations) < 100:
            await self._one(*self.mix.next())

    async def _one(self, kind: str, ask: Ask) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await perform(self.host, self.port, ask)
        except (Violation, OSError, EOFError, ValueError, LookupError, TimeoutError) as error:
            self.violations.append(f"{kind}: {type(error).__name__} {error} for {ask.body[:300]!r}")
        self.done[kind] += 1

    async def _watch(self, every_s: float) -> None:
        while True:
            self.footprints.append(Footprint.of(self.process))
            await asyncio.sleep(every_s)

    async def _settled(self) -> Footprint:
        """Once the server says that it holds nothing; the connections just closed may take a moment."""
        held: dict[str, float] = {}
        for _ in range(100):
            held = await self._held()
            if not any(held.values()):
                await asyncio.sleep(0.5)
                return Footprint.of(self.process)
            await asyncio.sleep(0.1)
        self.violations.append(f"still held 10 s after the last client left: {held}")
        return Footprint.of(self.process)

    async def _held(self) -> dict[str, float]:
        response, writer = await send(self.host, self.port, "/metrics", None)
        text = (await response.whole()).decode()
        writer.close()
        names = (
            "decodeloop_requests_in_flight",
            "decodeloop_num_requests_running",
            "decodeloop_num_requests_waiting",
            "decodeloop_engine_kv_cache_usage",
        )
        return {name: sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))) for name in names}

    def _compare(self, idle: Footprint, after: Footprint) -> None:
        """Pools may open threads when they are first busy: what counts is that the second half opened none."""
        early = [footprint.threads for footprint in self.footprints[: len(self.footprints) // 2]]
        threads = max([idle.threads, *early])
        if after.threads > threads:
            self.violations.append(f"{after.threads} threads, {threads} before")
        if after.fds > idle.fds:
            self.violations.append(f"{after.fds} file descriptors, {idle.fds} before")

    def rss_growth_mib(self) -> float:
        """Median of the second half less that of the first."""
        sizes = [footprint.rss_mib for footprint in self.footprints]
        half = len(sizes) // 2
        return statistics.median(sizes[half:]) - statistics.median(sizes[:half]) if half else 0.0


@contextmanager
def serving(arguments: list[str], log: TextIO) -> Iterator[tuple[psutil.Process, int]]:
    """`decodeloop serve ...` on a free port."""
    command = [sys.executable, "-m", "decodeloop", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stderr=log)
    try:
        yield psutil.Process(process.pid), wait_for_port(process, Path(log.name))
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def wait_for_port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s and process.poll() is None:
        found = re.search(r"curl .*:(\d+)/v1/", log.read_text())
        if found and asyncio.run(is_ready(int(found[1]))):
            return int(found[1])
        time.sleep(0.1)
    raise SystemExit(f"the server did not start:\n{log.read_text()}")


async def is_ready(port: int) -> bool:
    try:
        response, writer = await send("127.0.0.1", port, "/ready", None)
    except OSError:
        return False
    writer.close()
    return response.status == 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--runner", default="auto")
    parser.add_argument("--drafters", default="ngram,suffix")
    parser.add_argument("--policy", default="fixed")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--max-sequences", type=int, default=8)
    parser.add_argument("--max-context", type=int, default=512)
    parser.add_argument("--max-tokens", type=int, default=16, help="at most, of a request")
    parser.add_argument("--most-growth-mib", type=float, default=48.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("serve", nargs="*", metavar="SERVE OPTIONS", help="after --: passed on to `decodeloop serve`")
    options = parser.parse_args()

    mix = Mix(random.Random(options.seed), context=options.max_context, max_tokens=options.max_tokens)
    arguments = [options.model]
    for name in ("runner", "drafters", "policy", "max_sequences", "max_context"):
        arguments += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    arguments += options.serve
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        with serving(arguments, log) as (process, port):
            load = Load("127.0.0.1", port, process, mix)
            asyncio.run(load.run(options.clients, 60 * options.minutes))
        for line in Path(log.name).read_text().splitlines():
            if "Traceback" in line or " ERROR " in line:
                load.violations.append(f"in the server's log: {line}")
    return report(load, options)


def report(load: Load, options: argparse.Namespace) -> int:
    growth = load.rss_growth_mib()
    if growth > options.most_growth_mib:
        load.violations.append(f"memory grew by {growth:.1f} MiB")
    last = load.footprints[-1]
    print(f"{sum(load.done.values())} requests by {options.clients} clients in {options.minutes:g} minutes")
    for kind, count in load.done.most_common():
        print(f"  {count:6d} {kind}")
    print(f"memory {last.rss_mib:.0f} MiB, second half against first half {growth:+.1f} MiB")
    print(f"threads {last.threads}, file descriptors {last.fds} under load")
    for violation in load.violations[:20]:
        print(f"VIOLATED {violation[:1000]}")
    if options.json:
        violations = [violation[:200] for violation in load.violations[:100]]
        result = {"requests": dict(load.done), "rss_growth_mib": round(growth, 1), "violations": violations}
        print(json.dumps(result))
    return 1 if load.violations else 0


if __name__ == "__main__":
    sys.exit(main())
