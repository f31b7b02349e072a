"""The commands as a user types them, on a tiny model."""

import json
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

PATIENCE_S = 120


def run(*arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "decodeloop", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def model(tiny):
    return tiny.path


@contextmanager
def serving(*arguments, stop=signal.SIGINT):
    """`decodeloop serve ...` on a free port, until it is ready; then stopped by the signal `stop`."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "decodeloop", "serve", *map(str, arguments), "--port", str(port)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200:
                    break
            except httpx.TransportError:
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.send_signal(stop)
        process.stderr_text = process.communicate(timeout=PATIENCE_S)[1]


def test_generate_explains_every_step_and_replays(model):
    options = ("--model", model, "--runner", "torch", "--max-tokens", 20, "--temperature", 1, "--json")
    first = run("generate", "cat sat on the mat, cat sat on", *options, "--explain")
    report = json.loads(first.stdout.splitlines()[-1])
    assert first.stderr.count("verify ") >= report["steps"]
    again = run("generate", "cat sat on the mat, cat sat on", *options, "--seed", report["seed"], "--policy", "off")
    assert again.stdout.splitlines()[:-1] == first.stdout.splitlines()[:-1]


def test_doctor_counts_the_memory_of_speculation(model):
    found = json.loads(
        run("doctor", model, "--runner", "torch", "--draft-model", "layers:1", "--json").stdout.splitlines()[-1]
    )
    assert found["hardware"]["cores"] >= 1
    assert found["model"]["memory"]["weight_bytes"] > 0
    assert found["model"]["drafters"]["draft_model"]["draft_kv"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serve", "no-such-model"), "no model 'no-such-model'"),
        (("serve", "{model}", "--runner", "abacus"), "no 'abacus'; choose from"),
        (("serve", "{model}", "--policy", "luck"), "no 'luck'; choose from"),
        (("serve", "{model}", "--drafters", "oracle"), "no 'oracle'; choose from"),
        (("serve", "{model}", "--draft-model", "layers:99"), "layers:N needs N in 1..2"),
        (("serve", "{model}", "--max-context", "99999"), "beyond the model's own"),
        (("serve", "--config", "{config}"), "engine.polcy"),
        (("serve", "--config", "/nonexistent.yaml"), "/nonexistent.yaml"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(model, tmp_path, arguments, message):
    config = tmp_path / "serve.yaml"
    config.write_text(yaml.safe_dump({"model": str(model), "engine": {"polcy": "off"}}))
    done = run(*(a.format(model=model, config=config) for a in arguments), code=2)
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_serve_from_a_file_records_steps_and_stops_cleanly(model, tmp_path, monkeypatch, stop):
    config, steps = tmp_path / "serve.yaml", tmp_path / "steps.jsonl"
    settings = {
        "model": "${MODEL}",
        "served_model_name": "tiny",
        "record": str(steps),
        "engine": {"runner": "torch", "max_context": 256, "draft_len": 3},
    }
    config.write_text(yaml.safe_dump(settings))
    monkeypatch.setenv("MODEL", str(model))
    with serving("--config", config, stop=stop) as (url, process):
        body = {"model": "tiny", "prompt": "the cat sat on the cat sat on", "max_tokens": 12, "temperature": 0}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE_S).json()
        assert answer["usage"]["completion_tokens"] <= 12
        streamed = httpx.post(f"{url}/v1/completions", json={**body, "stream": True}, timeout=PATIENCE_S).text
        assert streamed.endswith("data: [DONE]\n\n")
    assert process.returncode == 0
    assert "curl" in process.stderr_text
    assert "Traceback" not in process.stderr_text
    assert "leaked" not in process.stderr_text  # compiled parts are told of at the end if they are still there
    header, *records = map(json.loads, Path(steps).read_text().splitlines())
    assert header["schema"] == "decodeloop.steps/1"
    assert header["provenance"]["model_hash"]
    emitted = sum(row["emitted"] for record in records for row in record["rows"])
    assert emitted >= 2 * answer["usage"]["completion_tokens"]
    for record in records:
        parts = sum(record[f"{part}_ms"] for part in ("draft", "verify", "sample", "overhead"))
        assert parts == pytest.approx(record["step_ms"], rel=0.05)
