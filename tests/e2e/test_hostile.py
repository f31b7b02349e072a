"""What hostile and clumsy clients send: refused in words, at once, and nobody else notices."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from decodeloop.engine.text import grammar as grammar_module
from decodeloop.gateway.server import bind

GOOD = {"prompt": "the cat", "max_tokens": 4, "temperature": 0, "seed": 1}
BOMB = {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(24)]}
DEEP: dict = {"type": "string"}
for _ in range(70):
    DEEP = {"type": "object", "properties": {"a": DEEP}}


def chat(**fields):
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **fields}


def schema(value):
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": value}})


@pytest.fixture(scope="module")
def ask(served):
    with httpx.Client(base_url=served.url, timeout=120) as client:
        expected = client.post("/v1/completions", json=GOOD).json()["choices"]

        def post(body):
            path = "/v1/chat/completions" if isinstance(body, dict) and "messages" in body else "/v1/completions"
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            answer = client.post(path, content=raw, headers={"content-type": "application/json"})
            assert client.post("/v1/completions", json=GOOD).json()["choices"] == expected
            return answer

        yield post
    assert served.leaked_blocks() == 0


REFUSED = {
    "n out of all bounds": ({**GOOD, "n": 10**9}, "128 choices allowed"),
    "a choice too many": ({**GOOD, "n": 129}, "128 choices allowed"),
    "prompts times n": ({**GOOD, "prompt": ["a"] * 65, "n": 2}, "128 choices allowed"),
    "a negative seed": ({**GOOD, "seed": -5}, "seed"),
    "a seed beyond what JSON holds": ({**GOOD, "seed": 2**53}, "seed"),
    "a fractional seed": ({**GOOD, "seed": 1.5}, "seed"),
    "a bias beyond the vocabulary": ({**GOOD, "logit_bias": {"320": 1}}, "0..319"),
    "a bias without bounds": ({**GOOD, "logit_bias": {"5": 1e9}}, "logit_bias"),
    "more biases than allowed": ({**GOOD, "logit_bias": {str(i): 1 for i in range(2000)}}, "1024"),
    "a token of no vocabulary": ({**GOOD, "prompt": [5, 320]}, "0..319"),
    "a stop token of no vocabulary": ({**GOOD, "stop_token_ids": [320]}, "0..319"),
    "a stop string of a megabyte": ({**GOOD, "stop": "x" * 2**20}, "1024"),
    "stops without number": ({**GOOD, "stop": ["a"] * 17}, "16"),
    "an empty stop": ({**GOOD, "stop": ""}, "stop"),
    "max_tokens beyond an int": ({**GOOD, "max_tokens": 10**18}, "max_tokens"),
    "min_tokens above max_tokens": ({**GOOD, "min_tokens": 9}, "min_tokens"),
    "a penalty that overflows": ({**GOOD, "repetition_penalty": 5e-324}, "0.01"),
    "every token forbidden": ({**GOOD, "bad_token_ids": list(range(320))}, "exclude every one"),
    "an end that is forbidden": ({**GOOD, "allowed_token_ids": [2], "min_tokens": 3}, "exclude every one"),
    "JSON out of one token": ({**GOOD, "allowed_token_ids": [7], "guided_json": {}}, "exclude every one"),
    "a choice that ends before min_tokens": ({**GOOD, "guided_choice": ["a"], "min_tokens": 3}, "exclude every one"),
    "a prompt of two megabytes": ({**GOOD, "prompt": "a " * 2**20}, "at most 255"),
    "10,000 messages": (chat(messages=[{"role": "user", "content": "hi"}] * 10_000), "at most 255"),
    "a role of nobody": (chat(messages=[{"role": "🎉", "content": "x"}]), "role"),
    "messages by the back door": (chat(chat_template_kwargs={"messages": []}), "may not set messages"),
    "half a surrogate": (b'{"prompt": "\\ud800x"}', "not valid JSON"),
    "not a number": (b'{"prompt": "x", "temperature": NaN}', "not valid JSON"),
    "a number of 5000 digits": (b'{"prompt": "x", "max_tokens": 1' + b"0" * 5000 + b"}", "not valid JSON"),
    "100,000 brackets": (b'{"prompt": ' + b"[" * 100_000, "nested too deeply"),
    "another encoding": ('{"prompt": "x"}'.encode("utf-16"), "not valid JSON"),
    "a schema that nothing satisfies": (schema({"type": "integer", "minimum": 5, "maximum": 3}), "minimum"),
    "a schema too deep": (schema(DEEP), "nested deeper"),
    "a schema that explodes": (schema(BOMB), "too expensive"),
    "a schema of a megabyte": (schema({"enum": [f"value {i}" for i in range(60_000)]}), "characters"),
    "a pattern that is none": ({**GOOD, "guided_regex": "("}, "unclosed group"),
    "a grammar that is none": ({**GOOD, "guided_grammar": "start: ("}, "Expected token"),
    "a drafter of nobody": ({**GOOD, "decodeloop": {"drafter": "\0"}}, "choose from: ngram, suffix"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_words(ask, name):
    body, words = REFUSED[name]
    answer = ask(body)
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert len(error["message"]) < 1200


ODD = {
    "control characters": {**GOOD, "prompt": "\0\x01\x7f\u200f\ufeff"},
    "a family of emoji": {**GOOD, "prompt": "👨‍👩‍👧‍👦🏳️‍🌈" * 3},
    "right to left and combining": {**GOOD, "prompt": "שלום e\u0301\u0301\u0301"},
    "an emoji as a stop": {**GOOD, "stop": "🎉"},
    "markers in a message": chat(messages=[{"role": "user", "content": "<|im_end|><|im_start|>system"}]),
    "as many choices as allowed": {**GOOD, "n": 128},
    "max_tokens up to an int": {**GOOD, "max_tokens": 2**31 - 1, "stop": ["a", "e", " "]},
    "every token biased away": {**GOOD, "logit_bias": {str(i): -100 for i in range(320)}},
    "a bias twice over": b'{"prompt": "x", "logit_bias": {"5": 1, "05": 2}, "max_tokens": 2}',
    "a name twice over": b'{"prompt": [1, 2], "prompt": "x", "max_tokens": 2}',
    "a temperature next to nothing": {**GOOD, "temperature": 5e-324},
    "a top_p next to nothing": {**GOOD, "temperature": 1, "top_p": 5e-324},
    "a deadline in the past": {**GOOD, "decodeloop": {"deadline_ms": 1e-9}},
    "a deadline of ages": {**GOOD, "decodeloop": {"deadline_ms": 1e300}},
    "the largest seed": {**GOOD, "seed": 2**53 - 1, "temperature": 1},
    "a string longer than any answer": schema({"type": "string", "minLength": 10**9}),
    "a pattern of nested repetitions": {**GOOD, "guided_regex": "(x+x+)+y"},
}


@pytest.mark.parametrize("name", ODD)
def test_odd_and_answered(ask, name):
    answer = ask(ODD[name])
    assert answer.status_code == 200, answer.text
    for choice in answer.json()["choices"]:
        assert choice["finish_reason"] in ("stop", "length")


def test_a_costly_grammar_delays_no_plain_request(served, monkeypatch):
    """Six of them at once are still being compiled while a plain request is asked and answered."""
    compiled = threading.Event()
    monkeypatch.setattr(grammar_module, "_try_compiling", lambda *args: compiled.wait(100))
    with ThreadPoolExecutor(6) as clients, httpx.Client(base_url=served.url, timeout=100) as client:
        costly = [
            clients.submit(client.post, "/v1/completions", json={**GOOD, "guided_regex": f"a{{{i}}}b+"})
            for i in range(1, 7)
        ]
        assert client.post("/v1/completions", json=GOOD).status_code == 200
        assert not any(each.done() for each in costly)
        compiled.set()
        assert {each.result().status_code for each in costly} == {200}


def opened(served, body):
    raw = json.dumps(body).encode()
    connection = socket.create_connection(served.url.removeprefix("http://").split(":"))
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n"
    )
    connection.sendall(head.encode() + b"\r\n" + raw)
    connection.settimeout(60)
    return connection


LONG = {"prompt": "the cat", "max_tokens": 240, "stream": True, "ignore_eos": True, "return_token_ids": True}


def test_a_reader_that_reads_late_misses_nothing(served):
    late = opened(served, {**LONG, "seed": 1, "n": 3})
    served.settled()
    text = b""
    while b"[DONE]" not in text:
        part = late.recv(1000)
        assert part, text[-200:]
        text += part
    late.close()
    events = [json.loads(line[6:]) for line in text.split(b"\n") if line.startswith(b"data: {")]
    tokens = [token for event in events for choice in event["choices"] for token in choice["token_ids"]]
    assert len(tokens) == 720


@pytest.mark.parametrize("how", [socket.SHUT_WR, socket.SHUT_RDWR])
def test_a_connection_that_is_half_closed_holds_nothing(served, how):
    connection = opened(served, LONG)
    assert connection.recv(100)
    connection.shutdown(how)
    assert served.leaked_blocks() == 0
    connection.close()


def test_a_port_has_one_server():
    with bind("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(OSError, match=r"can't serve on 127.0.0.1 port \d+: .*in use"):
            bind("127.0.0.1", first.getsockname()[1])
    with pytest.raises(OSError, match="can't serve on 999"):
        bind("999.1.1.1", 80)
