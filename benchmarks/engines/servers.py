"""Servers of three engines, each in its own process, with the same weights: what cards are made of."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml
from transformers import AutoTokenizer

from engines import setup
from engines.lines import Unavailable
from engines.models import write_gguf
from engines.subjects import Bench

START_S = 180.0
NAME = "smollm2"
SERVER = "vllm.entrypoints.openai.api_server"


@dataclass(frozen=True)
class Contender:
    """start: yields the arms, as `bench --arm` takes them, while its servers run."""

    name: str
    start: Callable[[Path, int], AbstractContextManager[list[str]]]


def contenders(bench: Bench, port: int) -> dict[str, Contender]:
    """port: of the first server; the others' follow. The same in every run: an arm is known by its URL."""
    return {
        "ours": Contender("ours", partial(ours, bench, port)),
        "llama.cpp": Contender("llama.cpp", partial(llama_cpp, bench, port + 1)),
        "vllm": Contender("vllm", partial(vllm, bench, port + 3)),
    }


@contextmanager
def ours(bench: Bench, port: int, logs: Path, most: int) -> Iterator[list[str]]:
    settings = {"dtype": "bf16", "policy": "adaptive", "drafters": ["ngram"]}
    with own_server(bench, port, logs, settings, most) as url:
        common = f"{url};verifier=coupled;engine=decodeloop;dtype=bf16"
        yield [
            f"off={common};speculation=off;role=off",
            f"adaptive={common};speculation=auto;role=adaptive;lossless=yes;policy=adaptive;drafters=ngram",
        ]


@contextmanager
def own_server(
    bench: Bench, port: int, logs: Path, settings: Mapping[str, object], most: int, *, cores: Sequence[int] = ()
) -> Iterator[str]:
    """No prefix cache: the others' is emptied or not used. cores: that it is held to; (): all."""
    engine = {"max_context": 2048, "max_sequences": most, "prefix_caching": False, "threads": bench.threads, **settings}
    whole = {"model": NAME, "engine": engine, "gateway": {"port": port}}
    config = logs / "ours.yaml"
    config.write_text(yaml.safe_dump(whole))
    command = [sys.executable, "-m", "decodeloop", "serve", "--config", str(config)]
    if cores:
        command = ["taskset", "--cpu-list", ",".join(map(str, cores)), *command]
    with served(command, port, logs / "ours.log") as url:
        yield url


@contextmanager
def llama_cpp(bench: Bench, port: int, logs: Path, most: int) -> Iterator[list[str]]:
    """Weights in memory and huge pages, which suits it best here. Two servers: its drafting is a setting."""
    server = setup.llama_cpp(bench.cache)
    gguf = write_gguf(bench.model, "BF16", server.with_name("llama-quantize"), bench.cache / "models")
    command = [str(server), "--model", str(gguf), "--parallel", str(most), "--ctx-size", str(2048 * most)]
    command += ["--threads", str(bench.threads), "--load-mode", "none", "--metrics", "--host", "127.0.0.1"]
    env = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    arms = {"off": ("role=off", []), "spec-default": ("drafters=spec-default", ["--spec-default"])}
    with ExitStack() as stack:
        found = []
        for place, (label, (said, options)) in enumerate(arms.items()):
            asked = [*command, "--port", str(port + place), *options]
            url = stack.enter_context(served(asked, port + place, logs / f"llama {label}.log", env))
            found.append(f"{label}={url};engine=llama.cpp;engine_version={setup.LLAMA_CPP};dtype=bf16;{said}")
        yield found


@contextmanager
def vllm(bench: Bench, port: int, logs: Path, most: int) -> Iterator[list[str]]:
    """bfloat16, plain: the slowest of the three on a processor without instructions for it."""
    python, env = setup.vllm(bench.cache)
    model = chat_model(bench)
    command = [str(python), "-m", SERVER, "--model", str(model), "--served-model-name", NAME, "--dtype", "bfloat16"]
    command += ["--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", str(most), "--port", str(port)]
    command += ["--generation-config", "vllm"]
    own = {name: value for name, value in env.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    own |= {"VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with served(command, port, logs / "vllm.log", own) as url:
        yield [f"off={url};engine=vllm;engine_version={setup.VLLM_VERSION};dtype=bf16;role=off"]


def chat_model(bench: Bench) -> Path:
    """The weights as transformers reads them, with tokenizer and chat template."""
    directory = bench.huggingface_model()
    if not (directory / "tokenizer.json").exists():
        source = AutoTokenizer.from_pretrained(bench.model.parent, gguf_file=bench.model.name)
        source.save_pretrained(directory)
    return directory


@contextmanager
def served(command: Sequence[str], port: int, log: Path, env: Mapping[str, str] = {}) -> Iterator[str]:
    """The server's URL once it lists its models. Raises Unavailable."""
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **env})
        try:
            _wait(f"{url}/v1/models", process, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.3)
    raise Unavailable(f"no server at {url}: {log.read_text(errors='replace')[-400:]}")
