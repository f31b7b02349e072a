"""`decodeloop certify` as it is typed: verdicts, exit codes, certificates and what becomes of them."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from decodeloop.cli import certify as command
from decodeloop.cli import certify_run
from decodeloop.cli.certify_session import Session, Watcher
from decodeloop.cli.main import app
from decodeloop.cli.opening import stderr
from decodeloop.evaluation.lossless.bugs import KeepsAll, Pinned
from decodeloop.evaluation.lossless.certify import Claims, planned
from decodeloop.evaluation.lossless.outcome import Level
from decodeloop.evaluation.lossless.sizes import QUICK
from decodeloop.evaluation.workloads.suite import mini_suite
from decodeloop.speculation.verifiers import verifiers

SMALL = replace(QUICK, draws=1000, tokens=8, samples=150, sample_prompts=2, sample_tokens=3, at_once=4)
DRAFTING = ("--draft-model", "layers:1", "--drafters", "draft_model")
ENGINE = ("--runner", "torch", "--max-context", "400", "--kv-memory-mb", "16", "--threads", "1", *DRAFTING)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Keys, caches and files of a test's own, and little to do."""
    monkeypatch.setenv("DECODELOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DECODELOOP_SIGNING_KEY", str(tmp_path / "keys" / "signing.pem"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "QUICK", SMALL)
    monkeypatch.setattr(certify_run.policies, "names", lambda: ["fixed"])  # all of them: tests/exact
    return tmp_path


@pytest.fixture
def embedded(tiny, workload):
    return ("embedded", "--model", str(tiny.path), "--workload", str(workload), *ENGINE)


def run(*arguments, code):
    done = CliRunner().invoke(app, ["certify", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def report(done):
    return json.loads(done.stdout.splitlines()[-1])


def test_less_may_be_asked_and_then_less_is_said_to_be_caught(embedded, monkeypatch):
    """Up to what is said in advance: nothing is measured."""
    seen = []

    def stop(asked, *_):
        seen.append(asked.sizes)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "certify_embedded", stop)
    run("--quick", "--samples", 60, "--at-once", 2, *embedded, code=130)
    run("--quick", *embedded, code=130)
    less, usual = seen
    assert (less.samples, less.at_once) == (60, 2)
    assert usual == SMALL
    claims = Claims(exact=False, coupled=True, steers=True)
    caught = [planned(Level.GREY, claims, 4, sizes)["distributions"] for sizes in seen]
    assert caught[0].size > caught[1].size
    assert caught[0].samples == 2 * 60 * SMALL.sample_prompts
    assert replace(less, samples=SMALL.samples, at_once=SMALL.at_once) == SMALL


def test_an_engine_as_it_ships(embedded, place, monkeypatch):
    """From nothing to a certificate, and everything that may be asked of it then."""
    done = run("--quick", *embedded, "--json", code=0)
    told = report(done)
    assert told["verdict"] == "yes"
    assert {check["name"] for check in told["checks"]} == {"algorithm", "sampler", "identity", "distributions"}
    assert all(control["caught"] for control in told["negative_controls"])
    assert {control["check"] for control in told["negative_controls"]} == {c["name"] for c in told["checks"]}
    assert all(0 < power["probability"] <= 1 for power in told["power"])
    assert not list((place / "cache" / "certify").iterdir())  # a finished run keeps no journal
    written = json.loads((place / "certificate.json").read_text())
    assert written["hash"] == told["certificate"]["hash"]
    assert written["regime"]["weight_format"] == "float32"
    assert (place / "keys" / "signing.pem").stat().st_mode & 0o777 == 0o600

    same = ("verify", "certificate.json", "--json", "--target", *embedded[:3], *ENGINE)
    held = report(run(*same, code=0))
    assert (held["verdict"], held["faults"], held["not_compared"]) == ("yes", [], [])
    other = report(
        run("verify", "certificate.json", "--target", *embedded[:3], *ENGINE, "--dtype", "int4", "--json", code=1)
    )
    assert any(fault.startswith("weight_format") for fault in other["faults"])
    run("verify", "certificate.json", "--issuer", told["certificate"]["key_id"], code=0)
    assert "signed by key" in run("verify", "certificate.json", "--issuer", "0000", code=1).stdout

    written["checks"][0]["passed"] = False
    (place / "forged.json").write_text(json.dumps(written))
    forged = run("verify", "forged.json", code=1).stdout
    assert "content was changed" in forged
    assert "signature is not" in forged
    (place / "no.json").write_text("{}")
    run("verify", "no.json", code=3)


@pytest.mark.parametrize("lossy", ["tests.lossy:KeepsAll", "tests.lossy:Synthetic"])
def test_an_engine_with_a_lossy_verifier(lossy, embedded, place, monkeypatch):
    """A verifier of another package, which says it is sound."""
    classes = {"KeepsAll": KeepsAll, "Synthetic": lambda: Pinned(0.9)}
    known = dict(verifiers._targets)
    monkeypatch.setitem(verifiers.__dict__, "_targets", {**known, "lossy": lossy})
    load = verifiers.load
    monkeypatch.setattr(
        verifiers, "load", lambda name: classes[lossy.split(":")[1]] if name == "lossy" else load(name), raising=False
    )
    told = report(run("--quick", *embedded, "--verifier", "lossy", "--json", code=1))
    assert told["verdict"] == "no"
    assert not {c["name"]: c["passed"] for c in told["checks"]}["algorithm"]
    assert told["certificate"] is None
    assert not (place / "certificate.json").exists()


def test_without_drafts_nothing_is_proved(embedded):
    plain = [word for word in embedded if word not in DRAFTING]
    told = report(run("--quick", *plain, "--drafters", "", "--json", code=3))
    assert told["verdict"] == "invalid"
    assert "identity" in told["why"]


def test_an_interrupted_run_goes_on(embedded, place, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(certify_run, "check_sampler", interrupted)
        assert "goes on" in run("--quick", *embedded, code=130).output

    def again(*_, **__):
        raise AssertionError("the algorithm was checked already")

    monkeypatch.setattr(certify_run, "check_algorithm", again)
    assert report(run("--quick", *embedded, "--json", code=0))["verdict"] == "yes"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--quick", "http://127.0.0.1:9"), "no connection"),
        (("ftp://x",), "no http"),
        (("embedded", "--declare", "threads=2"), "for URLs"),
        (("embedded", "--declare", "threads"), "FIELD=VALUE"),
        (("embedded", "--workload", "nowhere.jsonl"), "nowhere.jsonl"),
        (("verify", "nowhere.json"), "nowhere.json"),
    ],
)
def test_mistakes_are_told(arguments, message):
    with pytest.raises((ValueError, OSError), match=message):
        run(*arguments, code=2)


def test_a_target_that_stops_answering_proves_nothing(place):
    def gone():
        raise OSError("the connection broke")

    with Watcher(stderr) as watcher:
        asked = certify_run.Asked(
            environment=certify_run.Environment(place, {}),
            model=None,
            workload=None,
            sizes=SMALL,
            black=False,
            declared={},
            fresh=False,
        )
        with Session(asked, "name", watcher) as session:
            session.run({"identity": gone, "distributions": gone})
            found = session.found("grey", None)
    assert found.verdict == "invalid"
    assert found.why == "identity: the connection broke"
    assert session.journal.path.exists()  # what was collected stays


def test_the_default_workload_has_every_class_and_enough_texts():
    for sizes in (command.FULL, QUICK):
        texts = {json.dumps(request.messages) for request in mini_suite(sizes.prompts_a_class).requests}
        assert len(texts) == 8 * sizes.prompts_a_class
