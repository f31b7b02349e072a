"""What only a socket shows: real disconnects, slow clients, malformed heads, load, shutdown."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterable, Iterator

import pytest

from asgi import CHAT, chat
from decodeloop.gateway.settings import Limits
from decodeloop.types import Chunk, FinishReason, Request, Usage
from listening import wait_for
from live import Live, served
from scripted import FOREVER, ScriptedUpstream, Step, report


def spoken(request: Request) -> Iterable[Step]:
    """By the seed: 0 waits before the first chunk, 1 after it, 2 says without end, others say ten words."""
    if request.seed == 0:
        yield FOREVER
    yield Chunk(text="x", token_ids=(1,))
    if request.seed == 1:
        yield FOREVER
    while request.seed == 2:
        yield Chunk(text="y" * 4096, token_ids=(1,))
        yield 0.0
    for _ in range(9):
        yield 0.002
        yield Chunk(text="x", token_ids=(1,))
    yield Chunk(finish_reason=FinishReason.STOP, usage=Usage(1, 0, 10), report=report(request))


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with served(ScriptedUpstream(spoken)) as live:
        yield live


def post(live: Live, **fields: object) -> socket.socket:
    body = json.dumps(chat(**fields)).encode()
    connection = live.connect()
    connection.sendall(
        b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        % (CHAT.encode(), len(body))
        + body
    )
    return connection


def read_until(connection: socket.socket, part: bytes) -> bytes:
    got = b""
    while part not in got:
        data = connection.recv(65536)
        assert data, got
        got += data
    return got


def read_all(connection: socket.socket) -> bytes:
    got = b""
    while data := connection.recv(65536):
        got += data
    return got


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_a_closed_connection_closes_the_upstream(live: Live, stream: bool, seed: int) -> None:
    before = live.upstream.ends["cancelled"]
    connection = post(live, stream=stream, seed=seed)
    wait_for(lambda: live.upstream.open == 1)
    if stream and seed == 1:
        read_until(connection, b"\r\n\r\n")
    connection.close()
    wait_for(lambda: live.upstream.open == 0)
    assert live.upstream.ends["cancelled"] == before + 1


def test_a_reset_connection_closes_the_upstream(live: Live) -> None:
    connection = post(live, stream=True, seed=2)
    read_until(connection, b"yyy")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    connection.close()
    wait_for(lambda: live.upstream.open == 0)


def test_a_client_that_stops_reading_is_held_back_then_cut_off() -> None:
    with served(ScriptedUpstream(spoken), limits=Limits(stall_timeout_s=0.3)) as live:
        connection = post(live, stream=True, seed=2)
        read_until(connection, b"yyy")
        wait_for(lambda: live.upstream.open == 0)
        assert live.upstream.yielded < 20_000  # what the sockets' buffers took
        connection.close()


async def exchanged(live: Live, head: str, body: bytes = b"", until: bytes = b"") -> bytes:
    """All bytes of an answer, or those up to `until`, after which the client leaves."""
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    length = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write(f"{head} HTTP/1.1\r\nhost: x\r\n{length}".encode() + body)
    got = await (reader.readuntil(until) if until else reader.read())
    writer.close()
    return got


def test_two_hundred_streams_beside_bad_requests_and_leavers() -> None:
    async def run(live: Live) -> None:
        async def stream(seed: int) -> bytes:
            body = json.dumps(chat(stream=True, seed=seed)).encode()
            return await exchanged(live, f"POST {CHAT}", body, b'"x"' if seed == 1 else b"")

        async def bad(place: int) -> bytes:
            body = [b"{", b"\xff", b'{"model": "tiny", "messages": 5}', b"[" * 9999][place % 4]
            return await exchanged(live, f"POST {CHAT}", body)

        streams = [stream(1 if place % 10 == 0 else 7) for place in range(200)]
        got = await asyncio.gather(*streams, *[bad(place) for place in range(50)])
        whole = [answer for answer in got[:200] if b"[DONE]" in answer]
        assert [answer.count(b'"content":"x"') for answer in whole] == [10] * 180
        for refused in got[200:]:
            head, _, body = refused.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 ")
            assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
        while b"decodeloop_requests_in_flight 0.0" not in await exchanged(live, "GET /metrics"):
            await asyncio.sleep(0.01)

    upstream = ScriptedUpstream(spoken)
    with served(upstream) as live:
        asyncio.run(run(live))
    assert upstream.open == 0
    assert upstream.ends["ended"] == 180
    assert sum(upstream.ends.values()) == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 400_000, 431),
    ],
)
def test_heads_that_are_refused(live: Live, head: bytes, status: int) -> None:
    with live.connect() as connection:
        try:
            connection.sendall(head)
            got = read_all(connection)
        except ConnectionResetError:
            assert len(head) > 100_000  # the server left while we still wrote
            return
    assert got.startswith(b"HTTP/1.1 %d " % status)
    error = json.loads(got.partition(b"\r\n\r\n")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nhost:"])
def test_a_head_that_does_not_come(sent: bytes) -> None:
    limits = Limits(header_timeout_s=0.1)
    with served(ScriptedUpstream(spoken), limits=limits) as live, live.connect() as connection:
        connection.sendall(sent)
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")


def test_keep_alive_and_the_head_timer_leave_running_answers_alone() -> None:
    limits = Limits(header_timeout_s=0.05)
    with served(ScriptedUpstream(spoken), limits=limits, heartbeat_s=0.02) as live:
        connection = post(live, stream=True, seed=1)
        got = read_until(connection, b"keep-alive\n\n")
        while got.count(b"keep-alive\n\n") < 6:
            got += read_until(connection, b"keep-alive\n\n")
        connection.close()


def test_shutdown_lets_running_answers_end() -> None:
    upstream = ScriptedUpstream(spoken)
    with served(upstream) as live:
        connection = post(live, stream=True, seed=7)
        got = read_until(connection, b'"x"')
        live.server.should_exit = True
        got += read_until(connection, b"[DONE]")
        connection.close()
    assert got.count(b'"content":"x"') == 10
    assert upstream.stopped


def test_shutdown_out_of_patience_tells_and_closes() -> None:
    upstream = ScriptedUpstream(spoken)
    got: list[bytes] = []
    with served(upstream, limits=Limits(drain_s=1)) as live:
        connection = post(live, stream=True, seed=1)
        got.append(read_until(connection, b'"x"'))
        live.server.should_exit = True
        reader = threading.Thread(target=lambda: got.append(read_all(connection)))
        reader.start()
        reader.join()
        connection.close()
    assert b'"code":"shutting_down"' in got[-1]
    assert b"[DONE]" not in b"".join(got)
    assert upstream.open == 0
    assert upstream.stopped


def test_head_requests_and_pipelining(live: Live) -> None:
    with live.connect() as connection:
        connection.sendall(b"HEAD /health HTTP/1.1\r\nhost: x\r\n\r\n" + b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n")
        got = read_until(connection, b"unknown_url")
    assert got.startswith(b"HTTP/1.1 200 ")
    assert got.count(b"HTTP/1.1 ") == 2
    assert b'"ok"' not in got


def test_a_body_that_waits_to_be_asked_for_and_one_larger_than_what_is_read_ahead(live: Live) -> None:
    body = json.dumps(chat(messages=[{"role": "user", "content": "x" * 300_000}])).encode()
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    with live.connect() as connection:
        connection.sendall(head % (CHAT.encode(), len(body)) + b"expect: 100-continue\r\n\r\n")
        assert read_until(connection, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert read_until(connection, b"}").startswith(b"HTTP/1.1 ")
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        read_until(connection, b"HTTP/1.1 200 OK")


def test_nothing_after_the_last_request_is_read(live: Live) -> None:
    with live.connect() as connection:
        connection.sendall(
            b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
            b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n nonsense \r\n\r\n"
        )
        got = read_all(connection)
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert got.count(b"HTTP/1.1 ") == 1
