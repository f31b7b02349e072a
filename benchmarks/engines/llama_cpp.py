"""A llama-server in its own process.  llama_cpp.py SERVER GGUF SLOTS THREADS [SERVER'S OPTIONS]

Decode speed is by the server's own clock, so that HTTP costs it nothing. Standard library alone.
"""

from __future__ import annotations

import atexit
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lines import Block, Said, Unavailable, Work, serve

CONTEXT = 2048  # per slot
START_S = 120.0


class LlamaServer:
    """Weights in memory rather than mapped, and in huge pages: the settings that suit it best here."""

    def __init__(self, server: str, gguf: str, slots: int, threads: int, options: list[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        command = [server, "--model", gguf, "--port", str(self._port), "--host", "127.0.0.1", "--parallel", str(slots)]
        command += ["--ctx-size", str(CONTEXT * slots), "--threads", str(threads), "--load-mode", "none", *options]
        env = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=sys.stderr, env=env)
        atexit.register(self.close)
        self._pool = ThreadPoolExecutor(slots)
        self._wait()

    def _wait(self) -> None:
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            try:
                if self._send("GET", "/health", None)[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        self.close()
        raise Unavailable("llama-server did not start")

    def _send(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        said = json.loads(response.read())
        connection.close()
        return response.status, said

    def __call__(self, work: Work) -> Block:
        started_s = time.perf_counter()
        answers = [
            self._pool.submit(self._answer, prompt, work) for prompt in work.prompts[: work.at_once]
        ]  # a slot a stream
        assert work.at_once == 1 or len(work.prompts) == work.at_once
        said = [answer.result() for answer in answers]
        said += [self._answer(prompt, work) for prompt in work.prompts[work.at_once :]]
        return Block(time.perf_counter() - started_s, said)

    def _answer(self, prompt: list[int], work: Work) -> Said:
        asked = {
            "prompt": prompt,
            "n_predict": work.tokens,
            "temperature": 0.0,
            "samplers": ["temperature"],
            "ignore_eos": not work.ends,
            "cache_prompt": False,
            "return_tokens": True,
        }
        status, said = self._send("POST", "/completion", asked)
        if status != 200:
            raise Unavailable(f"status {status}: {said}")
        timings = said["timings"]
        return Said(said["tokens"], timings["predicted_n"], timings["predicted_ms"] / 1e3)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


if __name__ == "__main__":
    server, gguf, slots, threads, *options = sys.argv[1:]
    serve(lambda: LlamaServer(server, gguf, int(slots), int(threads), options))
