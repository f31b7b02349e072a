"""How near the native runner is to the reference:  python benchmarks/accuracy.py [--prompts N] [--json]

Logits over the text of 200 prompts against those of torch in float32 of the same weights: bf16 and the file's own int4
on the native runner, llama.cpp on the same file. Divergence (mean and 99th percentile of KL in nats over positions),
agreement of the likeliest token, ratio of perplexities. The bounds are those of `accuracy_bounds.py`, which the tests
keep on fewer prompts; beyond them our int4 may diverge no more than llama.cpp's execution of the same file. llama.cpp
is built in --cache. Exit status 1 on a violation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from accuracy_bounds import BOUNDS
from engines.lines import Unavailable
from engines.setup import llama_logits

from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import fetch_model
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.models import Checkpoint
from decodeloop.engine.models.sources import DEFAULT_MODEL, open_checkpoint
from decodeloop.engine.runners import RunnerOptions, runners
from decodeloop.evaluation.fidelity import Fidelity, Positions, Reference
from decodeloop.testing import Run, pack

HERE = Path(__file__).parent
PROMPTS = HERE / "data" / "prompts.jsonl"
Logits = Callable[[Sequence[int]], np.ndarray]  # tokens [T] -> [T, V]


def of_runner(name: str, checkpoint: Checkpoint, dtype: str, most: int) -> Logits:
    runner = runners.load(name)(checkpoint, RunnerOptions(dtype=dtype))
    blocks = -(-most // runner.info.block_tokens)
    runner.allocate_kv(blocks)
    return lambda tokens: runner.forward(pack([Run(tokens, 0, range(blocks))])).logits


def of_llama_cpp(program: Path, gguf: Path, threads: int, vocab_size: int, log: Path) -> Logits:
    """Raises Unavailable where the process does not answer."""
    command = [program, gguf, str(threads)]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
    assert process.stdin is not None
    assert process.stdout is not None
    asks, says = process.stdin, process.stdout

    def logits(tokens: Sequence[int]) -> np.ndarray:
        try:
            asks.write(" ".join(map(str, [len(tokens), *tokens])).encode() + b"\n")
            asks.flush()
        except OSError as error:
            raise Unavailable(f"llama.cpp has ended; see {log}") from error
        said = says.read(4 * len(tokens) * vocab_size)
        if len(said) < 4 * len(tokens) * vocab_size:
            raise Unavailable(f"llama.cpp has ended; see {log}")
        return np.frombuffer(said, np.float32).reshape(len(tokens), vocab_size)

    logits([0])
    return logits


def texts_of(checkpoint: Checkpoint, prompts: int, most: int) -> list[list[int]]:
    """The first `most` tokens of each prompt, prompts taken evenly from all classes."""
    rows = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    chosen = [rows[place * len(rows) // prompts] for place in range(prompts)]
    return [checkpoint.tokenizer.encode(row["prompt"])[:most] for row in chosen]


def measure(reference: Logits, others: dict[str, Logits], texts: Sequence[list[int]]) -> dict[str, Fidelity]:
    found: dict[str, list[Positions]] = {name: [] for name in others}
    for place, tokens in enumerate(texts):
        expected = Reference(reference(tokens), tokens)
        for name, logits in others.items():
            found[name].append(expected.compare(logits(tokens)))
        if place % 20 == 19:
            print(f"{place + 1} of {len(texts)} prompts", file=sys.stderr, flush=True)
    return {name: Fidelity.of(positions) for name, positions in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=192, help="of a prompt, at most")
    parser.add_argument("--cache", type=Path, default=read_environment().cache / "peers")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    path = fetch_model(DEFAULT_MODEL, read_environment())
    checkpoint, hardware, missing = open_checkpoint(path), read_hardware(), {}
    others = {name: of_runner("native", checkpoint, dtype, options.tokens) for name, (dtype, _) in BOUNDS.items()}
    peer = f"llama.cpp {path.suffixes[-2].strip('.') if len(path.suffixes) > 1 else path.stem}"
    try:
        program = llama_logits(options.cache)
        log = options.cache / "llama_logits.log"
        others[peer] = of_llama_cpp(program, path, hardware.threads, checkpoint.config.vocab_size, log)
    except Unavailable as error:
        missing[peer] = str(error)
    texts = texts_of(checkpoint, options.prompts, options.tokens)
    found = measure(of_runner("torch", checkpoint, "float32", options.tokens), others, texts)

    positions = next(iter(found.values())).positions
    print(f"{hardware.device}; {checkpoint.name}; {len(texts)} prompts, {positions} positions, against torch float32")
    for name, fidelity in found.items():
        print(
            f"  {name:<16} divergence {fidelity.divergence:.2e} (p99 {fidelity.divergence_p99:.2e})  "
            f"agreement {fidelity.agreement:.4f}  perplexity x{fidelity.perplexity_ratio:.4f}"
        )
    violations = [f"{name}: {what}" for name, (_, bounds) in BOUNDS.items() for what in bounds.violations(found[name])]
    if peer in found and found["int4"].divergence > found[peer].divergence:
        violations.append(f"int4: diverges more than {peer} of the same file")
    for line in [*violations, *(f"missing: {name}: {reason}" for name, reason in missing.items())]:
        print(line)
    if options.json:
        measures = {name: asdict(fidelity) for name, fidelity in found.items()}
        result = {"benchmark": "accuracy", "device": hardware.device, "prompts": len(texts), "measures": measures}
        print(json.dumps({**result, "violations": violations, "missing": missing}))
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main())
