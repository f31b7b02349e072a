"""The answers that benchmarks of classes decode: how long each is, and where it begins to loop."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from closed_loop import Arms

from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import open_model
from decodeloop.engine.intake import Intake, Prepared
from decodeloop.engine.settings import EngineSettings
from decodeloop.evaluation.cliff import MIXED, Cell
from decodeloop.evaluation.workload import Prompt, loop_at, read_prompts
from decodeloop.types import ChatPrompt, Request, RequestClass, SamplingParams

PROMPTS = Path(__file__).parent / "data" / "classes.jsonl"
TEMPERATURES = {
    RequestClass.CODE_EDIT: 0.0,
    RequestClass.CODE_SYNTHESIS: 0.3,
    RequestClass.STRUCTURED_JSON: 0.3,
    RequestClass.GENERAL_CHAT: 0.7,
    RequestClass.CREATIVE_WRITING: 1.0,
}
ANSWER_TOKENS = 96
LEAST_TOKENS = 16  # shorter answers say little
LOOP = 12
VARIANTS = 2  # seeds a prompt, where they matter


@dataclass(frozen=True)
class Script:
    """An answer that will be decoded: its request, and at how many tokens it ends (or begins to loop)."""

    prompt: Prompt
    seed: int
    tokens: int

    @property
    def name(self) -> str:
        return f"{self.prompt.id}/{self.seed}"


class Workload:
    """Scripts per class, prepared once for all arms."""

    def __init__(self, intake: Intake, prompts: Sequence[Prompt]) -> None:
        self._intake, self._prompts = intake, prompts
        self._prepared: dict[str, Prepared] = {}
        self.scripts: dict[str, list[Script]] = {}
        self.looping: dict[str, list[bool]] = {}

    def write(self, arms: Arms, load: int, *, cut_loops: bool) -> None:
        """Decode every answer plainly to see how long it is and where it loops."""
        drafts = [
            Script(prompt, seed, ANSWER_TOKENS)
            for prompt in self._prompts
            for seed in range(VARIANTS if TEMPERATURES[prompt.request_class] else 1)
        ]
        load = min(load, len(drafts))
        queue = itertools.cycle(drafts)
        served = arms.loops["off"].serve(
            (self.prepared(script) for script in queue), load, lambda served: len(served.answers) >= len(drafts) + load
        )
        answers = {answer.request_id: answer.token_ids for answer in served.answers}
        self._prepared.clear()
        for script in drafts:
            said, name = answers[script.name], str(script.prompt.request_class)
            start = loop_at(said, LOOP)
            self.looping.setdefault(name, []).append(start is not None)
            tokens = start + LOOP if start is not None and cut_loops else len(said)
            if tokens >= LEAST_TOKENS:
                self.scripts.setdefault(name, []).append(replace(script, tokens=tokens))

    def to_json(self) -> dict[str, Any]:
        scripts = {name: [[s.prompt.id, s.seed, s.tokens] for s in own] for name, own in self.scripts.items()}
        return {"scripts": scripts, "looping": self.looping}

    def read(self, data: Mapping[str, Any]) -> None:
        prompts = {prompt.id: prompt for prompt in self._prompts}
        self.looping = dict(data["looping"])
        self.scripts = {
            name: [Script(prompts[prompt], seed, tokens) for prompt, seed, tokens in own]
            for name, own in data["scripts"].items()
        }

    def looping_shares(self) -> dict[str, float]:
        return {name: round(sum(own) / len(own), 3) for name, own in self.looping.items()}

    def prepared(self, script: Script) -> Prepared:
        if script.name not in self._prepared:
            prompt = script.prompt
            self._prepared[script.name] = self._intake.prepare(
                Request(
                    id=script.name,
                    model="model",
                    prompt=ChatPrompt(({"role": "user", "content": prompt.text},)),
                    params=SamplingParams(temperature=TEMPERATURES[prompt.request_class], max_tokens=script.tokens),
                    seed=1 + script.seed,
                    request_class=prompt.request_class,
                )
            )
        return self._prepared[script.name]

    def stream(self, cell: Cell, turn: int) -> Iterator[Prepared]:
        """The turn's requests: every turn begins elsewhere; a mix takes from each class in turn."""
        classes = list(self.scripts) if cell.mix == MIXED else [cell.mix]
        place = turn * max(cell.load, 3)
        while True:
            own = self.scripts[classes[place % len(classes)]]
            yield self.prepared(own[(place // len(classes)) % len(own)])
            place += 1


def open_classes(model: str, runner: str, classes: Collection[RequestClass]) -> tuple[Arms, Workload]:
    """An engine for short requests, on which nothing but `off` is open, and the answers of some classes."""
    settings = EngineSettings(
        runner=runner,
        drafters=("ngram", "suffix"),
        drafter_options={"suffix": {"library_tokens": 0}},
        max_context=768,
        max_sequences=16,
        max_step_tokens=512,
        kv_memory_mb=768,
    )
    arms = Arms(open_model(model, read_environment()), settings)
    arms.open("off", "off")
    prompts = [p for p in read_prompts(PROMPTS.read_text().splitlines()) if p.request_class in classes]
    workload = Workload(arms.loops["off"].engine.intake, prompts)
    workload.write(arms, settings.max_sequences, cut_loops=True)
    return arms, workload
