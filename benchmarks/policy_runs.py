"""The adaptive policy put to three tests on the engine:  python benchmarks/policy_runs.py [--only NAMES] [--json]

swings      load 1 -> 16 -> 1: the draft length falls, and recovers (`load_swings.py`).
slowed      a drafter that is right nine times of ten becomes slow, then fast again: it goes off, and comes back.
drifting    two classes swap their texts in mid-run, against a run in which they don't: calibration error of the
            drafter's own confidence, of sequential temperature scaling fitted before the swap, and of the policy;
            alarms. The drafts are those that the n-gram drafter makes at every position of the engine's answers; the
            policy's steps are simulated on the measured step times, its drafters resting as they do in the engine.

Answers end where they begin to loop. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from class_answers import Script, Workload, open_classes
from closed_loop import Arms
from load_swings import LoadSwings
from turns import answers, rate, steps, verified

from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.intake import Prepared
from decodeloop.evaluation.acceptance import Texts
from decodeloop.evaluation.counterfactual import Text, histories
from decodeloop.evaluation.fleet import Limits
from decodeloop.evaluation.policy_rule import PolicyRule
from decodeloop.evaluation.simulate import Fleet, simulate_closed
from decodeloop.evaluation.trust import calibrated
from decodeloop.evaluation.workload import Arrival
from decodeloop.policy import Policy, PolicySettings, policies
from decodeloop.policy.acceptance import Runs
from decodeloop.policy.calibration import Calibrator, featurise
from decodeloop.policy.metrics import brier, log_loss
from decodeloop.policy.slots import Leaves
from decodeloop.policy.sts import fit_sequentially
from decodeloop.speculation import Draft, DraftBlock, DrafterSetup, DraftRequest
from decodeloop.speculation.drafters import drafters
from decodeloop.types import RequestClass, StepRecord

COPY, CHAT = RequestClass.CODE_EDIT, RequestClass.GENERAL_CHAT
SLOW_MS, RIGHT = 40.0, 10  # every RIGHT-th token of the slowed drafter is wrong
DEPTH = 12
FOREVER_S = 1e6
BATCH = 64  # drafts that the calibrations are scored on at a time


class SlowedDrafter:
    """Knows the plain answers, gets every RIGHT-th token wrong, and takes as long as it is told."""

    free = False

    def __init__(self, texts: Sequence[tuple[int, ...]], vocab_size: int) -> None:
        self._texts, self._vocab_size = texts, vocab_size
        self.ms = 0.0

    def propose(self, requests: Sequence[DraftRequest]) -> DraftBlock:
        ends = time.perf_counter() + self.ms / 1e3
        drafts = tuple(self._draft(request) for request in requests)
        while time.perf_counter() < ends:
            time.sleep(0.0005)
        return DraftBlock(drafts)

    def _draft(self, request: DraftRequest) -> Draft:
        known, start = tuple(request.tokens), len(request.tokens)
        text = next((text for text in self._texts if text[:start] == known), known)
        said = tuple(
            (token + (start + i) % RIGHT // (RIGHT - 1)) % self._vocab_size
            for i, token in enumerate(text[start : start + request.draft_len])
        )
        return Draft(said, confidence=tuple(0.9 ** (k + 1) for k in range(len(said))), drafter="slowed")

    def finish(self, sequence_id: int, tokens: Sequence[int], organization: str) -> None:
        """Nothing is kept."""

    def memory_bytes(self) -> Mapping[str, int]:
        return {}


class PolicyRuns:
    """The three tests, on engines that share weights."""

    def __init__(self, arms: Arms, workload: Workload) -> None:
        self._arms, self._workload = arms, workload

    def _scripts(self, text: RequestClass) -> Sequence[Script]:
        return self._workload.scripts[str(text)]

    def _stream(self, text: RequestClass, start: int = 0, **changes: Any) -> Iterator[Prepared]:
        for script in itertools.islice(itertools.cycle(self._scripts(text)), start, None):
            prepared = self._workload.prepared(script)
            yield replace(prepared, request=replace(prepared.request, **changes)) if changes else prepared

    def swings(self) -> dict[str, Any]:
        return LoadSwings(self._arms, self._workload, COPY).run()

    def slowed(self) -> dict[str, Any]:
        plain = self._arms.loops["off"].serve(self._stream(CHAT), 1, answers(12))
        texts = [self._text(answer.request_id, answer.token_ids) for answer in plain.answers]
        drafter = SlowedDrafter(texts, self._arms.runner.info.vocab_size)
        loop = self._arms.open("slowed", "adaptive", drafters=(), extra_drafters={"slowed": drafter})
        plainly = self._arms.loops["off"]
        found: dict[str, Any] = {}
        for name, ms, count in (("fast", 0.2, 500), ("slow", SLOW_MS, 800), ("fast again", 0.2, 1500)):
            drafter.ms = ms
            loop.serve(self._texts(), 1, steps(count))  # to notice
            turns = [arm.serve(self._texts(), 1, steps(300)) for arm in (loop, plainly, plainly, loop)]
            ratio = math.sqrt(rate(turns[0]) * rate(turns[3]) / (rate(turns[1]) * rate(turns[2])))
            found[name] = {"against_plain": round(ratio, 3), "verified": verified(turns[3].records)}
        fast, slow, again = (found[name]["against_plain"] for name in found)
        lost = loop.describe()["guard"]["lost_share"]
        return {**found, "lost_share": lost, "holds": fast > 1.1 and slow > 0.97 and again > 0.95 * fast}

    def _texts(self) -> Iterator[Prepared]:
        return itertools.cycle(itertools.islice(self._stream(CHAT), 12))

    def _text(self, name: str, said: tuple[int, ...]) -> tuple[int, ...]:
        script = next(s for s in self._workload.scripts[str(CHAT)] if s.name == name)
        return (*self._workload.prepared(script).tokens, *said)

    def drifting(self, steps: int) -> dict[str, Any]:
        own = {text: list(itertools.islice(self._stream(text), len(self._scripts(text)))) for text in (COPY, CHAT)}
        said = self._arms.loops["off"].serve(
            itertools.cycle(itertools.chain(*own.values())), 4, answers(4 + sum(map(len, own.values())))
        )
        answered = {answer.request_id: answer.token_ids for answer in said.answers}
        texts = [Text(text, each.tokens, answered[each.request.id], each.state) for text in own for each in own[text]]
        drafter = drafters.load("ngram")(DrafterSetup(self._arms.runner.info.vocab_size, 768, 4, DEPTH))
        known = Texts(histories(drafter, texts, draft_len=DEPTH))
        cost, _ = calibrated(self._arms.costs(), said.records, source="at start")
        found: dict[str, Any] = {}
        for name in ("stationary", "swapped"):
            deciding = Remembering(policies.load("adaptive")(PolicySettings(DEPTH), self._arms.costs()))
            swapped = {COPY: CHAT, CHAT: COPY} if name == "swapped" else {}
            seen = deciding.records
            late, over = (partial(_has, seen, count) for count in (steps, 2 * steps))
            stream = _labelled(texts, swapped, late, over)
            fleet = Fleet(
                replicas=1,
                cost=cost,
                rule=lambda deciding=deciding: PolicyRule(deciding, cost, max_draft_len=DEPTH),
                acceptance=known,
                limits=Limits(16, 128, 512),
            )
            simulate_closed(fleet, [next(stream) for _ in range(4)], seconds=FOREVER_S, following=stream)
            drift = deciding.describe()["drift"]
            found[name] = {"alarms": drift["alarms"], "evidence": drift["evidence"], "watched": drift["watched"]}
            found[name] |= calibrations([deciding.records[:steps], deciding.records[steps:]])
        better = all(
            run["log_loss"]["ours"] < min(run["log_loss"]["raw"], run["log_loss"]["sts"]) for run in found.values()
        )
        alarms = found["swapped"]["alarms"], found["stationary"]["alarms"]
        return {**found, "holds": better and alarms == (1, 0)}


class Remembering:
    """A policy, and all that it has seen."""

    learns = True

    def __init__(self, policy: Policy) -> None:
        self.plan, self.allocate, self.describe = policy.plan, policy.allocate, policy.describe
        self._observe = policy.observe
        self.records: list[StepRecord] = []

    def observe(self, record: StepRecord) -> None:
        self.records.append(record)
        self._observe(record)


def _labelled(
    texts: Sequence[Text],
    swapped: Mapping[RequestClass, RequestClass],
    late: Callable[[], bool],
    over: Callable[[], bool],
) -> Iterator[Arrival]:
    """The texts, again and again, of each class in turn until it is over; those that come late under the other's
    name."""
    numbered = list(enumerate(texts))
    turns = [itertools.cycle([(i, t) for i, t in numbered if t.request_class is name]) for name in (COPY, CHAT)]
    for i, text in itertools.chain.from_iterable(zip(*turns, strict=True)):
        if over():
            return
        arrival = text.arrival(i)
        name = swapped.get(text.request_class, text.request_class) if late() else text.request_class
        yield replace(arrival, request_class=name)


def _has(records: Sequence[StepRecord], count: int) -> bool:
    return len(records) >= count


def calibrations(parts: Sequence[Sequence[StepRecord]]) -> dict[str, Any]:
    """Conditional acceptance of played drafts, predicted before it was seen.

    raw: the drafters' own word. sts: fitted on the first half of parts[0], as is scored on what follows. ours: a
    calibrator that learns as it goes.
    """
    rows = [
        (row, part > 0)
        for part, records in enumerate(parts)
        for record in records
        for row in record.rows
        if row.draft_len and row.scores and row.drafter in row.shadow_match
    ]
    width = max(len(row.scores) for row, _ in rows)
    said = np.ones((len(rows), width))
    accepted, censored = [], []
    for i, (row, _) in enumerate(rows):
        said[i, : len(row.scores)] = row.scores
        judged = min(row.draft_len, row.accepted + 1)
        accepted.append(min(row.shadow_match[row.drafter], judged))
        censored.append(accepted[-1] >= judged)
    before = np.column_stack([np.ones(len(rows)), said[:, :-1]])
    raw = np.clip(said / np.maximum(before, 1e-12), 0.01, 0.99)
    runs = Runs.of(accepted, censored)
    leaves = Leaves()
    slots = np.array([leaves.row("local", row.request_class, row.drafter) for row, _ in rows])
    ours, learner = np.zeros_like(raw), Calibrator(width, leaves)
    for start in range(0, len(rows), BATCH):
        piece = slice(start, start + BATCH)
        taught = Runs(runs.accepted[piece], runs.censored[piece])
        ours[piece] = learner.learn(slots[piece], featurise(said[piece], np.zeros(len(said[piece]))), taught)
    fitted = sum(not later for _, later in rows) // 2
    sts = fit_sequentially(raw[:fitted], Runs(runs.accepted[:fitted], runs.censored[:fitted])).predict(raw)
    seen, hit = runs.labels(width)
    seen[:fitted] = False
    y = hit[seen].astype(np.float64)
    predictions = {"raw": raw[seen], "sts": sts[seen], "ours": ours[seen]}
    return {
        "labels": len(y),
        "log_loss": {name: round(float(log_loss(p, y)), 4) for name, p in predictions.items()},
        "brier": {name: round(float(brier(p, y)), 4) for name, p in predictions.items()},
    }


TESTS = ("swings", "slowed", "drifting")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TESTS), help=f"some of {', '.join(TESTS)}")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--runner", default="auto")
    parser.add_argument("--steps", type=int, default=8000, help="of each half of the drifting runs")
    parser.add_argument("--json", action="store_true", help="nothing but the JSON line")
    options = parser.parse_args()
    chosen = options.only.split(",")
    unknown = set(chosen).difference(TESTS)
    if unknown:
        raise SystemExit(f"no test called {', '.join(sorted(unknown))}; choose from {', '.join(TESTS)}")
    arms, workload = open_classes(options.model, options.runner, (COPY, CHAT))
    tests = PolicyRuns(arms, workload)
    results: dict[str, Any] = {}
    try:
        for name in chosen:
            extra = [options.steps] if name == "drifting" else []
            results[name] = getattr(tests, name)(*extra)
            if not options.json:
                print(f"{name}: {json.dumps(results[name], indent=1)}", flush=True)
    finally:
        arms.close()
    print(json.dumps({**results, "device": read_hardware().device}))


if __name__ == "__main__":
    main()
