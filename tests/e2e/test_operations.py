"""What an operator sees and what the server does to its machine. (Cases 22, 30, 31.)"""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from decodeloop.engine.recorder import StepRecorder
from decodeloop.types import Provenance
from stack import stack
from tiny import tiny_hf

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import load

ASK = {"prompt": "the cat sat on the mat, the cat sat on", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
SMALL = {"runner": "torch", "max_context": 128, "kv_memory_mb": 4, "threads": 1}


def complete(url, **fields):
    answer = httpx.post(f"{url}/v1/completions", json={**ASK, **fields}, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def metric(url, name):
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def warnings(url):
    return httpx.get(f"{url}/v1/policy").json()["data"][0]["policy"]["warnings"]


def test_a_broken_drafter_is_seen_from_outside(tiny, tmp_path):
    """A draft model of the right vocabulary and the wrong weights: answers are right, and the warning is visible."""
    wrong = tiny_hf("llama", tmp_path, vocab_size=320, seed=9)
    options = {"drafters": ("draft_model",), "drafter_options": {"draft_model": {"model": str(wrong)}}}
    with stack(tiny, policy="fixed", draft_len=8, **SMALL, **options) as served:
        assert warnings(served.url) == []
        answers = [complete(served.url, seed=seed) for seed in range(3)]
        (warning,) = warnings(served.url)
        assert "drafter draft_model" in warning
        assert metric(served.url, "decodeloop_engine_drafter_warnings") == 1
        assert metric(served.url, "decodeloop_engine_drafter_verified_total") > 200
    with stack(tiny, policy="off", **SMALL) as plain:
        assert complete(plain.url, seed=0)["choices"] == answers[0]["choices"]


def test_a_full_disk_costs_records_and_nothing_else(tiny, tmp_path):
    recorder = StepRecorder(tmp_path / "steps.jsonl", Provenance("1"))
    recorder.start()
    with stack(tiny, **SMALL, recorder=recorder) as served:
        complete(served.url)
        recorder.flush()
        assert metric(served.url, "decodeloop_engine_step_records_lost_total") == 0
        recorder._path = Path("/dev/full")  # as when the disk behind the same name is full
        complete(served.url)
        recorder.flush()
        assert metric(served.url, "decodeloop_engine_step_records_lost_total") > 0
        (warning,) = warnings(served.url)
        assert "No space left" in warning
        recorder._path = tmp_path / "steps.jsonl"
        lost = recorder.lost
        complete(served.url)
        recorder.flush()
        assert recorder.lost == lost
    recorder.close()


@contextmanager
def busy_neighbour(core):
    """A process that never rests, on that core."""
    program = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def cpu_s(process):
    times = process.cpu_times()
    return times.user + times.system


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="pins threads to cores")
def test_fewer_cores_than_threads_cost_time_but_no_work(tiny, tmp_path):
    """As under a quota: two threads on one core, which a neighbour wants too. Measured in processor time."""
    arguments = [str(tiny.path), "--runner", "torch", "--threads", "2", "--max-context", "128"]
    with (tmp_path / "log").open("w") as log, load.serving(arguments, log) as (process, port):
        url = f"http://127.0.0.1:{port}"
        complete(url)
        started = cpu_s(process)
        for _ in range(5):
            complete(url)
        free = cpu_s(process) - started
        core = min(os.sched_getaffinity(0))
        for thread in process.threads():
            os.sched_setaffinity(thread.id, {core})
        with busy_neighbour(core):
            started = cpu_s(process)
            for _ in range(5):
                complete(url)
            crowded = cpu_s(process) - started
        assert crowded < 3 * free + 1.0, f"{crowded} s of work instead of {free}"
        started = cpu_s(process)
        psutil.cpu_percent(interval=1.0)
        assert cpu_s(process) - started < 0.2, "it works while nobody asks"
