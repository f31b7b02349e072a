"""What a pool is said to be, from what its servers tell and a certificate; and requests that demand it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from asgi import CHAT, call, chat, lifespan
from canned import canned, head, models, whole
from decodeloop import config
from decodeloop.cli.pool_certificates import read_certificates
from decodeloop.cli.signing import SigningKey
from decodeloop.gateway.app import build_app
from decodeloop.gateway.governance import build_governance
from decodeloop.gateway.losslessness import SILENT, Declared, Told, standing_of, told_by_policy
from decodeloop.gateway.pools import PoolSettings
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.gateway.upstreams.regimes import told_by
from decodeloop.gateway.upstreams.remote import RemoteSettings
from decodeloop.governance.certificate import Certificate, issue
from decodeloop.governance.certificate import Regime as Certified
from decodeloop.types.routing import DEMANDS, Losslessness, Regime
from governed import KEY, Clock, Governed, settings
from scripted import ScriptedUpstream, says

NOW = datetime(2026, 11, 30, tzinfo=UTC)
ISSUED_S = NOW.timestamp()
REGIME = Certified(engine="decodeloop native", version="1", model="m", verifier="coupled")
FIXED, PLAIN = Declared(Regime.FIXED), Declared(Regime.PLAIN)
LOSSLESS, LOSSY = Told(speculates=True, lossless=True), Told(speculates=True, lossless=False)


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    signer = SigningKey.open(tmp_path / "key.pem")
    return issue(REGIME, declared=(), level="identity", checks=(), now=NOW, signer=signer)


@pytest.mark.parametrize(
    ("declared", "told", "status"),
    [
        (FIXED, {}, "unknown"),
        (FIXED, {"a": SILENT}, "unknown"),
        (replace(FIXED, losslessness=Losslessness.CLAIMED), {"a": SILENT}, "claimed"),
        (FIXED, {"a": LOSSLESS}, "claimed"),
        (FIXED, {"a": LOSSLESS, "b": SILENT}, "unknown"),
        (replace(FIXED, losslessness=Losslessness.CLAIMED), {"a": LOSSLESS, "b": LOSSY}, "lossy"),
        (replace(FIXED, losslessness=Losslessness.LOSSY), {"a": LOSSLESS}, "lossy"),
        (FIXED, {"a": Told(speculates=False)}, "plain"),
        (PLAIN, {}, "plain"),
        (PLAIN, {"a": SILENT}, "plain"),
        (PLAIN, {"a": Told(speculates=True)}, "unknown"),
        (PLAIN, {"a": LOSSY}, "lossy"),
    ],
)
def test_what_servers_tell_goes_before_what_is_declared(declared: Declared, told: Any, status: str) -> None:
    assert standing_of(declared, told, ISSUED_S).losslessness == status


def test_a_certificate_holds_for_what_it_certified_until_it_ends(certificate: Certificate) -> None:
    declared, same = replace(FIXED, certificate=certificate), replace(LOSSLESS, regime=asdict(REGIME))
    got = standing_of(declared, {"a": same}, ISSUED_S)
    assert (got.losslessness, got.certificate) == (Losslessness.CERTIFIED, certificate.hash)
    for told, now_s, why in (
        ({"a": replace(same, regime={**asdict(REGIME), "verifier": "block"})}, ISSUED_S, "another verifier"),
        ({"a": same, "b": replace(SILENT, version="2")}, ISSUED_S, "runs version 2"),
        ({"a": same}, ISSUED_S + 40 * 86400, "expired"),
    ):
        got = standing_of(declared, told, now_s)
        assert got.losslessness is not Losslessness.CERTIFIED
        assert why in got.why
        assert got.certificate == ""
    assert standing_of(declared, {"a": replace(LOSSY, regime=asdict(REGIME))}, ISSUED_S).losslessness == "lossy"


@pytest.mark.parametrize(
    ("engine", "page", "metrics", "told"),
    [
        ("vllm", {"version": "0.33.0"}, b"vllm:spec_decode_num_drafts_total 0\n", Told("0.33.0", True)),
        ("vllm", {"version": "0.33.0"}, b"vllm:num_requests_running 0\n", Told("0.33.0", False)),
        ("vllm", {"version": "0.33.0"}, b"", Told("0.33.0", None)),
        ("sglang", {"version": "1", "speculative_algorithm": None}, b"", Told("1", False)),
        ("sglang", {"version": "1", "speculative_algorithm": "EAGLE3"}, b"", Told("1", True, ("eagle3",), True)),
        (
            "sglang",
            {"version": "1", "speculative_algorithm": "EAGLE3", "speculative_accept_threshold_acc": 0.8},
            b"",
            Told("1", True, ("eagle3",), False),
        ),
        ("llamacpp", {"build_info": "b11434"}, b"", Told("b11434")),
        (
            "decodeloop",
            {"data": [{"policy": {"verifier": "block", "drafters": ["ngram"], "regime": None}}]},
            b"",
            Told("", True, ("ngram",), True),
        ),
        ("decodeloop", {"data": [{"policy": None}]}, b"", SILENT),
        ("decodeloop", {"data": []}, b"", SILENT),
    ],
)
def test_what_engines_tell(engine: str, page: Any, metrics: bytes, told: Told) -> None:
    assert told_by(engine, json.dumps(page).encode(), metrics) == told


def test_a_page_that_is_none_is_told_so() -> None:
    for page in (b"[]", b"<html>"):
        with pytest.raises(ValueError):
            told_by("vllm", page, b"")


def test_an_engine_of_ours_that_drafts_nothing() -> None:
    assert told_by_policy({"verifier": "coupled", "drafters": []}).speculates is False


def test_statuses_and_demands() -> None:
    meeting = {demand: [status.value for status in Losslessness if status.meets(demand)] for demand in DEMANDS}
    assert meeting == {"claimed": ["plain", "certified", "claimed"], "certified": ["plain", "certified"]}
    assert all(status.meets("") for status in Losslessness)


class Verifying(ScriptedUpstream):
    def __init__(self, verifier: str) -> None:
        super().__init__(says("a"))
        self.verifier = verifier

    def describe(self) -> dict[str, Any]:
        return {"verifier": self.verifier, "drafters": ["ngram"]}


POOLS = """
pools:
  risky: {upstreams: [risky], regime: fixed}
  sound: {upstreams: [sound], regime: fixed}
"""


def app_of(text: str = POOLS, **more: Any) -> Any:
    upstreams = {"risky": Verifying("threshold"), "sound": Verifying("coupled")}
    return build_app(config.load(text, GatewaySettings, env={}), upstreams, **more)


def demanding(lossless: str) -> dict[str, Any]:
    return chat(decodeloop={"lossless": lossless})


def test_a_request_that_demands_it_goes_where_it_is_met_or_is_refused() -> None:
    async def run() -> None:
        app = app_of()
        for _ in range(4):
            got = await call(app, "POST", CHAT, demanding("claimed"))
            assert got.headers["x-decodeloop-pool"] == "sound"
        got = await call(app, "POST", CHAT, demanding("certified"))
        error = got.json()["error"]
        assert (got.status, error["code"], error["param"]) == (400, "not_lossless", "decodeloop.lossless")
        assert "risky is lossy (risky accepts drafts by a lossy rule)" in error["message"]
        assert "sound is claimed" in error["message"]
        got = await call(app, "POST", CHAT, demanding("surely"))
        assert "choose from claimed, certified" in got.json()["error"]["message"]
        got = await call(app, "POST", CHAT, {**demanding("claimed")}, {**HEADERS, "x-decodeloop-pool": "risky"})
        assert got.headers["x-decodeloop-pool"] == "sound"

    asyncio.run(run())


HEADERS = {"content-type": "application/json"}


def test_pools_are_listed_with_what_is_known() -> None:
    async def run() -> None:
        listed = {each["name"]: each for each in (await call(app_of(), "GET", "/v1/pools")).json()["data"]}
        assert (listed["risky"]["losslessness"], listed["sound"]["losslessness"]) == ("lossy", "claimed")
        assert listed["sound"]["methods"] == ["ngram"]
        assert listed["sound"]["upstreams"][0]["models"] == ["tiny"]
        assert listed["sound"]["upstreams"][0]["speculates"] is True

    asyncio.run(run())


def test_a_grant_that_demands_it_and_who_was_served_where(tmp_path: Path) -> None:
    text = """
grants: [{id: careful, scope: {organization: acme}, lossless: claimed}]
"""

    async def run() -> None:
        audit = f"audit: {{directory: {tmp_path}/audit}}"
        governance = build_governance(settings(tmp_path, text + audit), clock=Clock())
        app = app_of(governance=governance)
        async with lifespan(app):
            for wish in ({}, {"lossless": "claimed"}, {"speculation": "off"}):
                got = await call(app, "POST", CHAT, chat(decodeloop=wish), Governed.headers(KEY))
                assert got.headers["x-decodeloop-pool"] == "sound", got.body
            assert (await call(app, "POST", CHAT, demanding("certified"), Governed.headers(KEY))).status == 400
            rows = await governance.store.rows(0, 1e12)
            assert {row.losslessness for row in rows} == {"claimed"}
        only = app_of("pools: {risky: {upstreams: [risky]}}", governance=governance_of(tmp_path, text))
        async with lifespan(only):
            got = await call(only, "POST", CHAT, chat(), Governed.headers(KEY))
            assert (got.status, got.json()["error"]["code"]) == (400, "not_lossless")

    asyncio.run(run())
    (chain,) = (tmp_path / "audit").glob("*.jsonl")
    assert '"losslessness":"claimed"' in chain.read_text()


def governance_of(tmp_path: Path, text: str) -> Any:
    return build_governance(settings(tmp_path, text), clock=Clock())


def test_a_certificate_in_the_configuration_is_checked(tmp_path: Path, certificate: Certificate) -> None:
    path = tmp_path / "certificate.json"
    pools = {"p": PoolSettings(upstreams=("a",), certificate=str(path))}
    with pytest.raises(config.ConfigError, match="pool p: certificate"):
        read_certificates(pools)
    data = certificate.to_json()
    path.write_text(json.dumps(data))
    assert read_certificates(pools) == {"p": certificate}
    path.write_text(json.dumps({**data, "level": "more"}))
    with pytest.raises(config.ConfigError, match="content was changed"):
        read_certificates(pools)
    for wrong in ({"losslessness": Losslessness.CERTIFIED}, {"losslessness": Losslessness.PLAIN}):
        with pytest.raises(ValueError, match="losslessness"):
            PoolSettings(upstreams=("a",), **wrong)


@pytest.mark.parametrize(("page", "status"), [("vllm:spec_decode_num_drafts_total 0\n", "unknown"), ("", "plain")])
def test_another_engine_is_asked_what_it_does(page: str, status: str) -> None:
    def answer(path: str, body: dict[str, Any]) -> Any:
        if path == "/version":
            return whole({"version": "0.33.0"})
        if path == "/metrics":
            text = f"vllm:num_requests_running 0\n{page}".encode()
            return [head(content_length=str(len(text))) + text]
        return models("vllm", "m")

    async def run() -> None:
        async with canned(answer) as there:
            remote = {"v": RemoteSettings(url=there.url, engine="vllm", poll_s=60.0)}
            pools = {"p": PoolSettings(upstreams=("v",), regime=Regime.FIXED)}
            app = build_app(GatewaySettings(upstreams=remote, pools=pools), {})
            async with lifespan(app):
                (pool,) = (await call(app, "GET", "/v1/pools")).json()["data"]
        assert pool["losslessness"] == status
        assert pool["upstreams"][0]["version"] == "0.33.0"
        assert pool["upstreams"][0]["speculates"] is (status == "unknown")

    asyncio.run(run())
