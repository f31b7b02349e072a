"""How often each drafter is right on a real model, and what its drafts cost.

    python benchmarks/drafter_acceptance.py [MODEL] [--drafter SPEC ...] [--draft-len K] [--temperature T] [--json]

SPEC is a drafter's name, with a draft model after a colon: ngram, suffix, draft_model:int4, draft_model:layers:28. Each
answers the same ten prompts (half of them copy from their text, half are open) at a fixed draft length, in the float32
target. Survival[k] is the share of drafts that reached length k whose first k tokens were all accepted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import open_model
from decodeloop.engine.ask import ask
from decodeloop.engine.build import build_engine
from decodeloop.engine.models import Checkpoint
from decodeloop.engine.settings import EngineSettings
from decodeloop.types import ChatPrompt, Request, SamplingParams, StepRecord

PASSAGE = (
    "The harbour of Lind was built in 1874 by the engineer Maria Oster. Its two moles are 410 and 265 metres long and "
    "shelter about ninety boats. In 1931 a storm broke the longer mole; it was rebuilt in concrete within two years. "
    "Today the harbour serves fishing boats in winter and sailing boats in summer."
)
CODE = """\
def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)
"""
PROMPTS = (
    f"Repeat this text word by word:\n\n{PASSAGE}",
    f"Summarise this text in three sentences:\n\n{PASSAGE}",
    f"Answer from the text: who built the harbour, and when was it rebuilt?\n\n{PASSAGE}",
    f"Add a check for an empty list to this function and show all of it:\n\n```python\n{CODE}```",
    f"List every number in this text with what it stands for:\n\n{PASSAGE}",
    "Explain to a child why the sky is blue.",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "What should I think about before I adopt a dog?",
    "Write a Python function that returns the n-th Fibonacci number, and explain it.",
    "Describe the water cycle in a few paragraphs.",
)
DRAFTERS = ("ngram", "suffix", "draft_model:int4", "draft_model:layers:28")


@dataclass(frozen=True, slots=True)
class Result:
    """acceptance: accepted / verified. mal: tokens a step, of the steps with a draft. times: a step, all sequences."""

    drafter: str
    drafts: int
    drafted_share: float
    acceptance: float
    mal: float
    survival: tuple[float, ...]
    draft_ms: float
    verify_ms: float


def measure(checkpoint: Checkpoint, spec: str, arguments: argparse.Namespace) -> Result:
    name, _, model = spec.partition(":")
    settings = EngineSettings(
        runner="torch",
        dtype="float32",
        max_sequences=arguments.at_once,
        drafters=(name,),
        drafter_options={name: {"model": model}} if model else {},
        policy="fixed",
        draft_len=arguments.draft_len,
    )
    records: list[StepRecord] = []
    engine = build_engine(checkpoint, settings, clock=time.monotonic, observers=(records.append,))
    engine.worker.start()
    try:
        answers = ask(
            engine, [_request(engine.name, i, arguments) for i in range(len(PROMPTS))], at_once=arguments.at_once
        )
    finally:
        engine.close(1.0)
    failed = [answer.error.message for answer in answers if answer.error is not None]
    if failed or engine.engine.proposers.failed:
        raise SystemExit(f"{spec}: {failed or engine.engine.proposers.failed}")
    return _result(spec, records, arguments.draft_len)


def _request(model: str, i: int, arguments: argparse.Namespace) -> Request:
    params = SamplingParams(temperature=arguments.temperature, max_tokens=arguments.max_tokens)
    prompt = ChatPrompt(({"role": "user", "content": PROMPTS[i]},))
    return Request(id=str(i), model=model, prompt=prompt, params=params, seed=i)


def _result(spec: str, records: Sequence[StepRecord], draft_len: int) -> Result:
    decoding = [record for record in records if not any(row.prefill_tokens for row in record.rows)]
    rows = [row for record in records for row in record.rows if not row.prefill_tokens]
    drafts = [row for row in rows if row.verify_len]
    survival = []
    for k in range(1, draft_len + 1):
        reached = [row for row in drafts if row.verify_len >= k]
        survival.append(sum(row.accepted >= k for row in reached) / max(1, len(reached)))
    accepted = sum(row.accepted for row in drafts)
    return Result(
        drafter=spec,
        drafts=len(drafts),
        drafted_share=len(drafts) / len(rows),
        acceptance=accepted / max(1, sum(row.verify_len for row in drafts)),
        mal=1 + accepted / max(1, len(drafts)),
        survival=tuple(survival),
        draft_ms=sum(record.draft_ms for record in decoding) / len(decoding),
        verify_ms=sum(record.verify_ms for record in decoding) / len(decoding),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--drafter", nargs="+", default=DRAFTERS, metavar="SPEC")
    parser.add_argument("--draft-len", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--at-once", type=int, default=1, help="requests that run together")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    arguments = parser.parse_args()
    checkpoint = open_model(arguments.model, read_environment())
    results = []
    print("drafter                   drafts  share  acceptance   MAL  draft ms  verify ms  survival")
    for spec in arguments.drafter:
        result = measure(checkpoint, spec, arguments)
        results.append(result)
        survival = " ".join(f"{value:.2f}" for value in result.survival)
        print(
            f"{spec:24} {result.drafts:7d} {result.drafted_share:6.2f} {result.acceptance:11.2f} {result.mal:5.2f}"
            f" {result.draft_ms:9.2f} {result.verify_ms:10.2f}  {survival}",
            flush=True,
        )
    if arguments.json:
        print(json.dumps([asdict(result) for result in results]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
