"""The load client's connections: addresses, kept ones that end, servers that nobody can measure."""

from __future__ import annotations

import asyncio

import pytest

from canned import canned, models, whole
from decodeloop.evaluation.client.http import Address, Client, Lost
from decodeloop.evaluation.client.target import connect
from decodeloop.evaluation.plan import Arm


def test_a_kept_connection_that_the_server_closed_is_replaced():
    async def run():
        async with canned(lambda path, _: [*whole({"path": path}), -1.0]) as server:  # says keep-alive, and hangs up
            client = Client(Address.of(server.url))
            replies = [(await client.send("GET", f"/{i}")).status for i in range(5)]
            client.close()
            return replies

    assert asyncio.run(run()) == [200] * 5


def test_a_kept_connection_that_is_closing_is_replaced():
    """Its end is known to the transport, and not yet to us."""

    async def run():
        async with canned(lambda path, _: whole({"path": path})) as server:
            client = Client(Address.of(server.url))
            await client.send("GET", "/1")
            client._idle[0]._transport.close()
            status = (await client.send("GET", "/2")).status
            client.close()
            return status

    assert asyncio.run(run()) == 200


def test_nobody_there():
    async def run():
        await connect(Arm(label="x", target="http://127.0.0.1:9"))

    with pytest.raises(Lost, match="no connection to http://127"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (models("me", "a", "b"), "serves a, b: say which"),
        (whole({"object": "list"}), "not what OpenAI's API answers"),
        (whole({"error": {"message": "who are you"}}, 401), "HTTP 401: who are you"),
    ],
)
def test_servers_that_cant_be_measured_are_refused(answer, message):
    async def run():
        async with canned(lambda *_: answer) as server:
            await connect(Arm(label="x", target=server.url))

    with pytest.raises(ValueError, match=message):
        asyncio.run(run())


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http:///v1"])
def test_addresses(url):
    with pytest.raises(ValueError, match="no http"):
        Address.of(url)
    assert Address.of("localhost:8000/v1/").url == "http://localhost:8000"
    assert Address.of("https://api.example.com/openai/v1", "k").path == "/openai"
