"""Who takes part in benchmarks/peers.py, and how each is started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from decodeloop.engine.models.sources import open_checkpoint
from engines import setup
from engines.lines import Process, Unavailable
from engines.models import write_gguf, write_huggingface

HERE = Path(__file__).parent
LLAMA_ARMS = {"plain": (), "spec-default": ("--spec-default",), "ngram-simple": ("--spec-type", "ngram-simple")}
MOST_STREAMS = 16


@dataclass(frozen=True)
class Subject:
    """An engine with weights in one format. alone, company: the arms that it plays one at a time and among streams.

    start: its process for an arm and a number of streams. slow: it gets one prompt of a kind in a block, and streams in
    the first block only.
    """

    name: str
    alone: tuple[str, ...]
    company: tuple[str, ...]
    start: Callable[[str, int], Process]
    own_process: bool = False  # each arm is another process
    slow: bool = False

    def key(self, arm: str, streams: int) -> str:
        if not self.own_process:
            return self.name
        return f"{self.name} {arm} {'alone' if streams == 1 else 'streams'}"


@dataclass(frozen=True)
class Bench:
    """model: the GGUF as shipped. cache: where other engines and their forms of the model are kept."""

    model: Path
    cache: Path
    threads: int

    def script(self, name: str, *arguments: str | Path, python: str | Path = sys.executable, **env: str) -> Process:
        logs = self.cache / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        log = logs / f"{name} {' '.join(Path(str(word)).name for word in arguments)}.log"
        command = [str(python), str(HERE / f"{name}.py"), *map(str, arguments)]
        return Process(command, log, {"PYTHONPATH": str(HERE.parent), **env})

    def huggingface_model(self) -> Path:
        directory = self.cache / "models" / "bf16"
        if not (directory / "generation_config.json").exists():
            write_huggingface(open_checkpoint(self.model), directory)
        return directory


def gather(bench: Bench, only: Sequence[str]) -> tuple[list[Subject], dict[str, str]]:
    """Who can take part, and why others can't. only: what names may start with; empty: all."""
    found: list[Subject] = []
    missing: dict[str, str] = {}
    for family, build in FAMILIES.items():
        if only and not any(name.startswith(family) or family.startswith(name) for name in only):
            continue
        try:
            found += build(bench)
        except (Unavailable, OSError, subprocess.SubprocessError) as error:
            missing[family] = str(error)
    chosen = [subject for subject in found if not only or any(subject.name.startswith(name) for name in only)]
    return chosen, missing


def ours(bench: Bench) -> list[Subject]:
    def start(dtype: str, arm: str, streams: int) -> Process:
        return bench.script("ours", bench.model, dtype, str(bench.threads))

    def start_http(arm: str, streams: int) -> Process:
        return bench.script("ours_http", bench.model, "auto")

    alone, company = ("plain", "ngram 4", "ngram 8", "adaptive"), ("plain", "adaptive")
    return [
        Subject("ours bf16", alone, company, partial(start, "bf16")),
        Subject("ours int4", alone, company, partial(start, "auto")),
        Subject("ours int4 through HTTP", (), ("plain",), start_http),
    ]


def llama_cpp(bench: Bench) -> list[Subject]:
    server = setup.llama_cpp(bench.cache)
    quantize = server.with_name("llama-quantize")
    made = {format: write_gguf(bench.model, format, quantize, bench.cache / "models") for format in ("BF16", "Q4_0")}

    def start(gguf: Path, arm: str, streams: int) -> Process:
        slots = "1" if streams == 1 else str(MOST_STREAMS)
        return bench.script("llama_cpp", server, gguf, slots, str(bench.threads), *LLAMA_ARMS[arm])

    return [
        Subject(f"llama.cpp {name}", tuple(LLAMA_ARMS), ("plain",), partial(start, gguf), own_process=True)
        for name, gguf in {"BF16": made["BF16"], "Q4_1": bench.model, "Q4_0": made["Q4_0"]}.items()
    ]


def transformers(bench: Bench) -> list[Subject]:
    """float32 too: where a processor has no bfloat16 instructions it is the faster one."""
    model = bench.huggingface_model()

    def start(dtype: str, arm: str, streams: int) -> Process:
        return bench.script("huggingface", model, dtype, str(bench.threads))

    arms = ("plain", "lookup 10")
    return [
        Subject("transformers bfloat16", arms, ("plain",), partial(start, "bfloat16"), slow=True),
        Subject("transformers float32", arms, (), partial(start, "float32"), slow=True),
    ]


def vllm(bench: Bench) -> list[Subject]:
    python, env = setup.vllm(bench.cache)
    model = bench.huggingface_model()

    def start(arm: str, streams: int) -> Process:
        return bench.script("vllm_cpu", model, python=python, **env)

    return [Subject("vLLM bfloat16", ("plain",), ("plain",), start, slow=True)]


FAMILIES = {"ours": ours, "llama.cpp": llama_cpp, "transformers": transformers, "vLLM": vllm}
