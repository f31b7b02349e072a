"""Over HTTP: whatever a request asks for, however it is drafted and whoever it shares steps with, its answer is the
one without speculation, byte for byte, log-probabilities included."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from stack import stack

TEXT = "the cat sat on the mat, the cat sat on the hat, the cat sat on"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 6}}, "required": ["a"]}
ASKED = {
    "copying": {"prompt": TEXT},
    "a shared prefix": {"prompt": TEXT + " the"},
    "drawn": {"prompt": TEXT, "temperature": 1, "top_p": 0.9},
    "few to choose from": {"prompt": TEXT, "temperature": 0.7, "top_k": 4, "min_p": 0.01},
    "penalties": {"prompt": TEXT, "presence_penalty": 0.8, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "a rewarded repetition": {"prompt": TEXT, "frequency_penalty": -2, "temperature": 1},
    "biases": {"prompt": TEXT, "logit_bias": {"7": 5, "9": -100}, "bad_token_ids": [11], "temperature": 0.5},
    "few tokens": {"prompt": TEXT, "allowed_token_ids": [5, 6, 7], "temperature": 1},
    "log-probabilities": {"prompt": TEXT, "logprobs": 3, "return_token_ids": True},
    "three choices": {"prompt": TEXT, "n": 3, "temperature": 1, "logprobs": 1},
    "one token": {"prompt": TEXT, "max_tokens": 1},
    "two tokens": {"prompt": TEXT, "max_tokens": 2},
    "a forced length": {"prompt": TEXT, "ignore_eos": True, "min_tokens": 20},
    "a stop": {"prompt": TEXT, "stop": ["a", "\n"], "temperature": 1},
    "a stop token": {"prompt": TEXT, "stop_token_ids": list(range(20, 60)), "temperature": 1},
    "two prompts": {"prompt": [TEXT, "a b a b a b a"], "temperature": 1},
    "JSON": {"prompt": TEXT, "structured_outputs": {"json": SCHEMA}, "logprobs": 2},
    "a pattern": {"prompt": TEXT, "structured_outputs": {"regex": "(ab ){1,9}c"}, "temperature": 1},
}
WAYS = (
    {},
    {"speculation": "force"},
    {"drafter": "suffix", "draft_len": 12},
    {"priority": "batch"},
)
ENGINES = {
    "adaptive": {"policy": "adaptive"},
    "interactive": {"policy": "interactive", "policy_options": {"tpot_ms": 1.0}},
    "long drafts to the end of the context": {"policy": "fixed", "draft_len": 12, "max_context": 80},
    "a draft model": {
        "policy": "fixed",
        "drafters": ("draft_model", "suffix"),
        "drafter_options": {"draft_model": {"model": "layers:1"}},
    },
    "rejection": {"policy": "fixed", "verifier": "rejection"},
    "block": {"policy": "fixed", "verifier": "block"},
}


def answered(client, body, way):
    asked = {"max_tokens": 24, "temperature": 0, "seed": 11, **body, "decodeloop": way}
    got = client.post("/v1/completions", json=asked, headers={"x-slo-tpot-ms": "2"})
    assert got.status_code == 200, got.text
    return got.json()


def told(answer):
    return json.dumps([answer["choices"], answer["usage"]["completion_tokens"]])


def cut_off(client):
    with client.stream("POST", "/v1/completions", json={"prompt": TEXT, "stream": True, "max_tokens": 60}) as got:
        next(got.iter_lines())


@pytest.mark.parametrize("name", ENGINES)
def test_answers_are_those_without_speculation(tiny, name):
    settings = {"max_context": 160, "max_sequences": 6, "kv_memory_mb": 8, **ENGINES[name]}
    coupled = "verifier" not in settings  # the others keep the law of a drawn text, not its bytes
    bodies = {key: body for key, body in ASKED.items() if coupled or not body.get("temperature")}
    with (
        stack(tiny, runner="torch", fixed_shape=True, **settings) as running,
        httpx.Client(base_url=running.url, timeout=120) as client,
        ThreadPoolExecutor(8) as clients,
    ):
        plain = {key: told(answered(client, body, {"speculation": "off"})) for key, body in bodies.items()}
        jobs = [(key, way) for key in bodies for way in WAYS]
        random.Random(5).shuffle(jobs)
        gone = [clients.submit(cut_off, client) for _ in range(4)]
        futures = [(key, clients.submit(answered, client, bodies[key], way)) for key, way in jobs]
        answers = [(key, future.result()) for key, future in futures]
        for future in gone:
            future.result()
        assert [key for key, answer in answers if told(answer) != plain[key]] == []
        assert sum(answer["decodeloop"]["accepted"] for _, answer in answers) > 0
        assert running.leaked_blocks() == 0
