"""The load test itself, for ten seconds, on a tiny model."""

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import load


def run(tiny, config, *options):
    return subprocess.run(
        [
            sys.executable,
            load.__file__,
            "--model",
            tiny.path,
            "--runner",
            "torch",
            "--json",
            *options,
            "--",
            "--config",
            config,
        ],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture
def config(tmp_path):
    """One shape for all forwards: torch keeps memory for every other one that it has seen."""
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump({"engine": {"fixed_shape": True, "threads": 1, "kv_memory_mb": 2}}))
    return path


def test_ten_seconds_of_everything_leave_nothing_behind(tiny, config):
    done = run(tiny, config, "--minutes", "0.17", "--clients", "24", "--most-growth-mib", "16")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["violations"] == []
    assert min(result["requests"].values()) >= 8


def event(value):
    return f"data: {json.dumps(value)}\n\n".encode()


def choice(**fields):
    return {"choices": [{"index": 0, "finish_reason": None, "delta": {}, **fields}]}


REFUSED = {"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": "nothing_left"}}
GOOD = event(choice()) + event(choice(finish_reason="stop")) + event({"choices": [], "usage": {"completion_tokens": 3}})
DONE = b"data: [DONE]\n\n"
FINE = load.Ask("/", b"{}", check=load.finishes(1, 3))
IMPOSSIBLE = load.Ask("/", b"{}", (400,), "nothing_left")


@pytest.mark.parametrize(
    ("status", "body", "ask", "fault"),
    [
        (200, GOOD + DONE, FINE, None),
        (200, GOOD, FINE, "without"),
        (200, event(choice()) + DONE, FINE, "ends"),
        (200, GOOD + event(choice(finish_reason="stop")) + DONE, FINE, "ends"),
        (200, GOOD + DONE, load.Ask("/", b"{}", check=load.finishes(1, 2)), "max_tokens 2"),
        (200, event(choice()) + event(REFUSED), FINE, "refused"),
        (500, json.dumps(REFUSED).encode(), FINE, "status 500"),
        (429, json.dumps(REFUSED).encode(), FINE, "status 429"),
        (400, json.dumps(REFUSED).encode(), IMPOSSIBLE, None),
        (200, event(REFUSED), IMPOSSIBLE, None),
        (400, json.dumps(REFUSED).encode(), load.Ask("/", b"{}", (400,), "context_length_exceeded"), "refused"),
        (
            200,
            event(choice(finish_reason="stop", delta={"content": "{}"})) + DONE,
            load.Ask("/", b"{}", check=load.is_json),
            "schema",
        ),
    ],
)
def test_what_a_server_does_wrong_is_seen(status, body, ask, fault):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status} X\r\n".encode()
        if status == 200:
            writer.write(head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        else:
            writer.write(head + b"content-length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async def played():
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            await load.perform("127.0.0.1", server.sockets[0].getsockname()[1], ask)

    if fault is None:
        asyncio.run(played())
    else:
        with pytest.raises(load.Violation, match=fault):
            asyncio.run(played())


def test_what_is_left_behind_is_seen():
    left = load.Load("", 0, psutil.Process(), load.Mix(random.Random(0), context=512, max_tokens=4))
    left._compare(load.Footprint(100.0, 5, 10), load.Footprint(100.0, 6, 11))
    assert left.violations == ["6 threads, 5 before", "11 file descriptors, 10 before"]
    left.footprints = [load.Footprint(size, 1, 1) for size in (10.0, 10.0, 30.0, 30.0)]
    assert left.rss_growth_mib() == 20.0
