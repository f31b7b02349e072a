"""Servers behind https: their certificates are checked, and what fails the check gets nothing of a request."""

from __future__ import annotations

import asyncio
import datetime
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from asgi import CHAT, call, chat, lifespan
from decodeloop.gateway.app import Gateway, build_app
from decodeloop.gateway.breaker import BreakerSettings
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.gateway.upstreams.remote import RemoteSettings, RemoteUpstream
from elsewhere import DONE, END, USAGE_EVENT, Elsewhere, answers, event, piece, streams


@dataclass(frozen=True)
class Certificate:
    path: Path  # certificate and key

    @property
    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path)
        return context


def self_signed(path: Path, host: str = "127.0.0.1", *, days: int = 1) -> Certificate:
    """days: until it expires; below 0, it has."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=3))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
    return Certificate(path)


@asynccontextmanager
async def before(server: Elsewhere, authorities: str | None, **settings: Any) -> AsyncIterator[Gateway]:
    remote = RemoteSettings(
        url=server.url.replace("http://", "https://"), authorities=authorities, poll_s=60.0, models={"tiny": "tiny"}
    )
    app = build_app(GatewaySettings(upstreams={"a": remote}, **settings), {})
    async with lifespan(app):
        yield app


async def forget_connections(app: Gateway) -> None:
    """Those that are kept were checked when they were made."""
    upstream = app.fleet.upstreams["a"]
    assert isinstance(upstream, RemoteUpstream)
    assert upstream._client is not None
    for each in list(upstream._client._idle):
        each.abort()
    while upstream._client._idle:
        await asyncio.sleep(0.01)


def test_an_upstream_over_https_answers_whole_and_streamed(tmp_path: Path) -> None:
    mine = self_signed(tmp_path / "mine.pem")
    text = event(piece("žlutý ")) + END

    async def run() -> None:
        server = Elsewhere(answers())
        async with server.serving(mine.context), before(server, str(mine.path)) as app:
            for _ in range(2):
                got = await call(app, "POST", CHAT, chat())
                assert (got.status, got.json()["choices"][0]["message"]["content"]) == (200, "yes")
            server.play = streams(text[:20], 0.0, text[20:], USAGE_EVENT, DONE)
            got = await call(app, "POST", CHAT, chat(stream=True))
            assert got.body == text + DONE
            server.play = answers({"blob": "x" * 2**20})  # many records
            assert len((await call(app, "POST", CHAT, chat())).body) > 2**20

    asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "days", "is_known", "why"),
    [
        ("127.0.0.1", 1, False, "self-signed"),
        ("127.0.0.2", 1, True, "not valid for '127.0.0.1'"),
        ("127.0.0.1", -1, True, "expired"),
    ],
)
def test_a_certificate_that_fails_is_refused_by_default(
    tmp_path: Path, host: str, days: int, *, is_known: bool, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = self_signed(tmp_path / "its.pem", host, days=days)

    async def run() -> None:
        server = Elsewhere(answers())
        async with server.serving(made.context), before(server, str(made.path) if is_known else None) as app:
            got = await call(app, "POST", CHAT, chat())
            assert (got.status, got.json()["error"]["code"]) == (503, "not_ready")
            assert (server.looks, server.bodies) == (0, [])

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "upstream a does not answer: its certificate is not accepted (" in caplog.text
    assert why in caplog.text


def test_a_server_whose_certificate_changes_is_left_alone_until_it_is_right_again(tmp_path: Path) -> None:
    """It was up; then whoever answers at its address shows another certificate."""
    mine, other = self_signed(tmp_path / "mine.pem"), self_signed(tmp_path / "other.pem")

    async def run() -> None:
        server = Elsewhere(answers())
        breaker = BreakerSettings(faults_in_a_row=2, open_s=0.2)
        context = mine.context
        async with server.serving(context), before(server, str(mine.path), breaker=breaker) as app:
            member = app.fleet.members["a"]
            context.load_cert_chain(other.path)
            await forget_connections(app)
            for _ in range(2):
                got = await call(app, "POST", CHAT, chat())
                error = got.json()["error"]
                assert (got.status, error["code"]) == (502, "upstream_failed")
                assert error["message"] == "upstream a can't be reached (its certificate is not accepted)"
            assert member.breaker.state == "open"
            assert (await call(app, "POST", CHAT, chat())).status == 503
            assert server.bodies == [], "no word of a request reached it"
            context.load_cert_chain(mine.path)
            await asyncio.sleep(0.25)
            assert (await call(app, "POST", CHAT, chat())).status == 200
            assert member.breaker.state == "closed"

    asyncio.run(run())


def test_plain_words_at_an_https_address_are_a_failure_too(tmp_path: Path) -> None:
    async def run() -> None:
        server = Elsewhere(answers())
        async with server.serving(), before(server, None) as app:
            assert (await call(app, "POST", CHAT, chat())).status == 503

    asyncio.run(run())


def test_authorities_that_are_none_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("no certificate\n")

    def start(name: str) -> None:
        settings = RemoteSettings(url="https://127.0.0.1:1", authorities=str(tmp_path / name))
        asyncio.run(RemoteUpstream("a", settings).start())

    with pytest.raises(ValueError, match=r"no certificates in .*empty\.pem"):
        start("empty.pem")
    with pytest.raises(FileNotFoundError, match=r"missing\.pem"):
        start("missing.pem")
