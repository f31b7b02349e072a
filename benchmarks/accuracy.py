"""How near the native runner is to the reference:  python benchmarks/accuracy.py [--prompts N] [--json]

Logits over the text of 200 prompts against those of torch in float32 of the same weights: bf16 and the file's own int4
on the native runner, llama.cpp on the same file. Divergence (mean and 99th percentile of KL in nats over positions),
agreement of the likeliest token, ratio of perplexities. The bounds are those of `accuracy_bounds.py`, which the tests
keep on fewer prompts. Beyond them our int4 may not diverge more, nor agree less, than llama.cpp's execution of the same
file, as far as the differences of prompts show (95 % t intervals). llama.cpp is built in --cache. Exit status 1 on a
violation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
from accuracy_bounds import BOUNDS
from engines.lines import Unavailable
from engines.setup import llama_logits
from scipy.stats import t

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


def compare(reference: Logits, others: dict[str, Logits], texts: Sequence[list[int]]) -> dict[str, list[Positions]]:
    found: dict[str, list[Positions]] = {name: [] for name in others}
    seen: set[tuple[int, ...]] = set()
    for place, tokens in enumerate(texts):
        beginnings = [tuple(tokens[: end + 1]) for end in range(len(tokens))]
        first = sum(beginning in seen for beginning in beginnings)
        seen.update(beginnings)
        if first == len(tokens):
            continue
        expected = Reference(reference(tokens), tokens)
        for name, logits in others.items():
            found[name].append(from_position(first, expected.compare(logits(tokens))))
        if place % 20 == 19:
            print(f"{place + 1} of {len(texts)} prompts", file=sys.stderr, flush=True)
    return found


def measure(reference: Logits, others: dict[str, Logits], texts: Sequence[list[int]]) -> dict[str, Fidelity]:
    return {name: Fidelity.of(positions) for name, positions in compare(reference, others, texts).items()}


def from_position(first: int, positions: Positions) -> Positions:
    """Prompts may begin alike, and what they share is counted once."""
    return Positions(**{field.name: getattr(positions, field.name)[first:] for field in fields(positions)})


def differences(ours: Sequence[Positions], theirs: Sequence[Positions]) -> dict[str, tuple[float, float, float]]:
    """Ours less theirs, mean over prompts with its 95 % t interval: of divergence, its logarithm, and agreement."""
    measures: dict[str, Callable[[Positions], float]] = {
        "divergence": lambda of: float(of.divergence.mean()),
        "log divergence": lambda of: float(np.log(np.maximum(of.divergence, 1e-12)).mean()),
        "agreement": lambda of: float(of.same_choice.mean()),
    }
    found = {}
    for name, value in measures.items():
        each = np.array([value(a) - value(b) for a, b in zip(ours, theirs, strict=True)])
        half = float(t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each)))
        found[name] = (float(each.mean()), float(each.mean()) - half, float(each.mean()) + half)
    return found


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
    measured = compare(of_runner("torch", checkpoint, "float32", options.tokens), others, texts)
    found = {name: Fidelity.of(positions) for name, positions in measured.items()}

    positions = next(iter(found.values())).positions
    print(f"{hardware.device}; {checkpoint.name}; {len(texts)} prompts, {positions} positions, against torch float32")
    for name, fidelity in found.items():
        print(
            f"  {name:<16} divergence {fidelity.divergence:.2e} (p99 {fidelity.divergence_p99:.2e})  "
            f"agreement {fidelity.agreement:.4f}  perplexity x{fidelity.perplexity_ratio:.4f}"
        )
    violations = [f"{name}: {what}" for name, (_, bounds) in BOUNDS.items() for what in bounds.violations(found[name])]
    beside = differences(measured["int4"], measured[peer]) if peer in measured else {}
    for name, (mean, low, high) in beside.items():
        print(f"  int4 less {peer}, {name}: {mean:.2e} [{low:.2e}, {high:.2e}]")
    if beside and beside["divergence"][1] > 0:
        violations.append(f"int4: diverges more than {peer} of the same file")
    if beside and beside["agreement"][2] < 0:
        violations.append(f"int4: agrees less than {peer} of the same file")
    for line in [*violations, *(f"missing: {name}: {reason}" for name, reason in missing.items())]:
        print(line)
    if options.json:
        measures = {name: asdict(fidelity) for name, fidelity in found.items()}
        result = {"benchmark": "accuracy", "device": hardware.device, "prompts": len(texts), "measures": measures}
        result["less_peer"] = beside
        print(json.dumps({**result, "violations": violations, "missing": missing}))
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main())
