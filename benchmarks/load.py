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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import psutil
from load_asks import Ask, Violation, perform, send
from load_mix import Mix, finishes, is_json

__all__ = ["Ask", "Footprint", "Load", "Mix", "Violation", "finishes", "is_json", "perform", "send", "serving"]

MIB = 1 << 20
PATIENCE_S = 600.0


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
