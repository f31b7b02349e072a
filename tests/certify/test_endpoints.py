"""Certification over HTTP: our own server, another that can't be steered, and one that shows nothing but texts."""

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from decodeloop.cli.certify_run import certify_endpoint, observed_regime
from decodeloop.cli.certify_session import Asked, Watcher
from decodeloop.cli.environment import Environment
from decodeloop.cli.opening import stderr
from decodeloop.engine.build import build_engine
from decodeloop.engine.regime import read_regime
from decodeloop.engine.settings import EngineSettings
from decodeloop.engine.upstream import EmbeddedUpstream
from decodeloop.evaluation.lossless.endpoint import Endpoint, Served
from decodeloop.evaluation.lossless.outcome import Level, Verdict
from decodeloop.evaluation.lossless.sizes import QUICK
from decodeloop.gateway.app import build_app
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.governance.certificate import Regime, differences
from listening import listening

SMALL = replace(QUICK, tokens=8, samples=160, sample_prompts=1, sample_tokens=3, at_once=4, power_rounds=4)


@contextmanager
def serving(checkpoint, **options):
    settings = EngineSettings(
        runner="torch",
        max_context=400,
        kv_memory_mb=16,
        draft_memory_mb=16,
        threads=1,
        policy="fixed",  # an adaptive one may find that it doesn't pay here, and then nothing is proved
        drafters=("draft_model",),
        drafter_options={"draft_model": {"model": "layers:1"}},
        **options,
    )
    engine = build_engine(checkpoint, settings, clock=time.monotonic, name="tiny")
    upstream = EmbeddedUpstream(engine, created=1, regime=partial(read_regime, engine, settings))
    gateway = GatewaySettings()
    with listening(build_app(gateway, {"embedded": upstream}), gateway) as (_, port):
        yield f"http://127.0.0.1:{port}", read_regime(engine, settings)


@pytest.fixture(scope="module")
def ours(tiny):
    with serving(tiny) as running:
        yield running


@pytest.fixture
def certify(tmp_path, workload):
    def run(url, plain=None, **options):
        sizes = options.pop("sizes", SMALL)
        settings = {"model": None, "workload": workload, "black": False, "declared": {}, "fresh": False, **options}
        asked = Asked(environment=Environment(tmp_path, {}), sizes=sizes, **settings)
        with Watcher(stderr) as watcher:
            return certify_endpoint(asked, url, plain, None, watcher)

    return run


def test_our_own_server_has_its_own_plain_mode(ours, certify):
    url, regime = ours
    found = certify(url)
    assert (found.verdict, found.level) == (Verdict.YES, Level.GREY), found.why
    assert found.regime == regime
    checks = {check.name: check for check in found.checks}
    assert set(checks) == {"declaration", "identity", "distributions"}
    assert checks["identity"].measured["answers"] == 2 * 14 * 3  # temperatures, prompts, companies: seeds count here
    assert observed_regime(url, None, None) == (regime, ())


def test_four_bits_behind_a_url_are_not_the_sixteen_that_were_promised(ours, tiny, certify, tmp_path, workload):
    many = tmp_path / "many.jsonl"
    many.write_text("".join(json.dumps({"id": str(i), "prompt": f"{i} cat sat on {i}"}) + "\n" for i in range(24)))
    url, regime = ours
    with serving(tiny, dtype="int4") as (four_bits, other):
        found = certify(four_bits, url, workload=many)
        assert found.verdict is Verdict.NO
        assert not {check.name: check.passed for check in found.checks}["identity"]
        assert any(line.startswith("weight_format") for line in differences(regime, other))


def test_a_black_box_is_seen_by_its_texts_alone(ours, certify):
    found = certify(ours[0], black=True)
    assert (found.verdict, found.level) == (Verdict.YES, Level.BLACK), found.why
    assert [check.name for check in found.checks] == ["declaration", "texts"]


class Words(BaseHTTPRequestHandler):
    """An OpenAI API that says random words, and tells neither ids nor seeds nor how it decodes."""

    protocol_version = "HTTP/1.1"
    refused = ("top_k", "logprobs", "return_token_ids")
    served = 0

    def do_GET(self):
        self._say(200, {"data": [{"id": "words", "owned_by": "someone"}]} if self.path == "/v1/models" else {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        unknown = [name for name in self.refused if name in body]
        if unknown:
            return self._say(400, {"error": {"message": f"no field {unknown[0]}"}})
        Words.served += 1
        text = "".join("ab"[(Words.served * 2654435761 >> (9 + i)) & 1] for i in range(body["max_tokens"]))
        return self._say(200, {"choices": [{"message": {"content": text.replace("b", self.server.word)}}]})

    def _say(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@contextmanager
def words(word):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Words)
    server.word = word
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(("word", "verdict"), [("b", Verdict.YES), ("c", Verdict.NO)])
def test_a_vendor_against_a_reference(word, verdict, certify):
    with words(word) as url, words("b") as reference:
        found = certify(url, reference, declared={"weight_format": "bf16"})
        assert (found.verdict, found.level) == (verdict, Level.BLACK), found.why
        assert (found.regime.model, found.regime.weight_format) == ("words", "bf16")
        running, unseen = observed_regime(url, None, None)
        assert differences(found.regime, running, ignore=unseen) == ()
        assert "weight_format" in unseen


def test_a_declared_lossy_rule_needs_no_sampling(certify):
    with words("b") as url, words("b") as reference:
        found = certify(url, reference, declared={"flags": {"rejection_sample_method": "synthetic"}})
        assert found.verdict is Verdict.NO


def test_what_cannot_be_compared_is_refused(ours, certify):
    with words("b") as url:
        with pytest.raises(ValueError, match="--plain URL"):
            certify(url)
        with pytest.raises(ValueError, match="can't be compared"):
            certify(ours[0], url)
        with pytest.raises(ValueError, match="serves words, not gpt"):
            certify(url, model="gpt")
        for declared in ({"model": "m"}, {"colour": "red"}):
            with pytest.raises(ValueError, match=next(iter(declared))):
                certify(url, url, declared=declared)


def test_what_our_server_is_asked(ours):
    endpoint = Endpoint.connect(ours[0])
    try:
        facts = endpoint.facts
        assert (facts.engine, facts.unit, facts.steers, facts.seeded, facts.chat) == (
            "decodeloop",
            "token ids",
            True,
            True,
            True,
        )
        assert endpoint.accepted_total() is not None
        assert Served(endpoint).plain is None
        assert Regime.from_json(json.loads(json.dumps(asdict(ours[1])))) == ours[1]
    finally:
        endpoint.close()
