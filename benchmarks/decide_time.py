"""How long deciding takes: the allocation alone, and a whole policy around it.

    python benchmarks/decide_time.py [--step-ms MS] [--json]

Synthetic scores and costs; the times are real. Every figure is the median and the fastest tenth of many calls. The last
line is JSON. `share` is plan + allocate + observe of 16 requests against a step of --step-ms. Free drafters have spoken
before the plan, as in the engine, and go by the length of their match as those that ship do: "busy" proposes something
for every request at every step, "some" for every other one and never for the first, whom the others' drafts may
therefore slow no further than the interference bound, "quiet" is open text, in which there is hardly anything to
propose. Caches are warm here; between two steps of a model they are not.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np

from decodeloop.policy import PolicySettings, policies
from decodeloop.policy.allocate import Items, allocate
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.cost_fit import CostSample
from decodeloop.speculation.drafters.ngram import succession
from decodeloop.types import DecodeRequest, Knowledge, Load, Plan, RequestClass, Scores, StepRecord, StepRow

CLASSES = list(RequestClass)
DRAFTERS = ("ngram", "suffix")
TEXTS = {"busy": 1.0, "some": 0.5, "quiet": 0.05}  # how often a drafter has something to say
RIGHT = 0.8  # how often a drafted token is right, the ones before it being so


def step_ms(tokens: int) -> float:
    """About what int4 takes on two cores."""
    return 3.4 + 0.4 * tokens


def surface() -> CostSurface:
    """Measured without noise."""
    counts, lengths = (1, 4, 16, 64, 256), (1, 2, 3, 5, 9)
    return CostSurface([CostSample(n * k, 256 * n, n, step_ms(n * k)) for n in counts for k in lengths])


def timed(call: Callable[[], object], repeats: int) -> dict[str, float]:
    """Microseconds."""
    times = []
    for _ in range(repeats):
        started = perf_counter()
        call()
        times.append(1e6 * (perf_counter() - started))
    return {"median_us": round(float(np.median(times)), 1), "fast_us": round(float(np.quantile(times, 0.1)), 1)}


def allocation(requests: int, positions: int, repeats: int) -> dict[str, float]:
    """From survival to verify lengths, the scan of step times included."""
    survival = np.cumprod(np.random.default_rng(0).uniform(0.3, 1.0, (requests, positions)), axis=1)
    costs, tokens = surface(), np.arange(requests, requests * (1 + positions) + 1)
    return timed(lambda: allocate(Items(survival), costs.step_ms_many(tokens, 256 * requests, requests)), repeats)


class Loop:
    """Requests that a policy serves, step after step, with drafts that fare at random."""

    def __init__(self, name: str, requests: int, max_draft_len: int, text: str) -> None:
        self.proposing, self.silent = TEXTS[text], int(text == "some")
        self.policy = policies.load(name)(PolicySettings(max_draft_len), surface())
        self.rng, self.step = np.random.default_rng(0), 0
        self.load = Load(requests, 0, 256 * requests, 0.9)
        self.requests = [
            DecodeRequest(f"r{i}", "t", CLASSES[i % 3], 256, max_draft_len, None, DRAFTERS) for i in range(requests)
        ]

    def told(self) -> list[DecodeRequest]:
        """The step's requests, with what the drafters have to say for each."""
        length, shape = self.requests[0].max_draft_len, (len(self.requests), len(DRAFTERS))
        matches = (1 + self.rng.geometric(0.1, shape)).tolist()
        speaks = np.repeat(self.rng.random((shape[0], 1)) < self.proposing, shape[1], axis=1)
        speaks[: self.silent] = False
        return [
            replace(
                request,
                proposals={
                    name: succession(matches[i][d], length) if speaks[i, d] else () for d, name in enumerate(DRAFTERS)
                },
            )
            for i, request in enumerate(self.requests)
        ]

    def scores(self, plan: Plan, told: list[DecodeRequest]) -> Scores:
        return Scores(
            tuple(
                np.array(request.proposals[name][:length]) if name is not None else np.zeros(0)
                for request, name, length in zip(told, plan.drafters, plan.draft_lens, strict=True)
            ),
            Knowledge.PREFIX,
        )

    def record(self, plan: Plan, verify_lens: tuple[int, ...], scores: Scores, told: list[DecodeRequest]) -> StepRecord:
        self.step += 1
        rows = []
        for request, drafter, said, verified in zip(told, plan.drafters, scores.values, verify_lens, strict=True):
            right = int(self.rng.geometric(1.0 - RIGHT)) - 1
            accepted = min(right, verified)
            row = StepRow(
                request_id=request.request_id,
                tenant="t",
                request_class=request.request_class,
                reason=plan.reasons[0],
                drafter=drafter,
                draft_len=len(said),
                verify_len=verified,
                scores=tuple(said.tolist()),
                accepted=accepted,
                emitted=accepted + 1,
                shadow_match={name: min(right, accepted + 1) if own else 0 for name, own in request.proposals.items()},
            )
            rows.append(row)
        verify_ms = step_ms(sum(1 + length for length in verify_lens))
        return StepRecord(
            step=self.step,
            at_s=0.0,
            load=self.load,
            draft_ms=0.1,
            verify_ms=verify_ms,
            sample_ms=0.1,
            overhead_ms=0.1,
            step_ms=verify_ms + 0.3,
            rows=tuple(rows),
        )

    def times(self, steps: int) -> dict[str, dict[str, float]]:
        spans: dict[str, list[float]] = {"plan": [], "allocate": [], "observe": [], "together": []}
        for _ in range(steps):
            told = self.told()
            started = perf_counter()
            plan = self.policy.plan(self.load, told)
            planned = perf_counter()
            scores = self.scores(plan, told)
            drafted = perf_counter()
            decision = self.policy.allocate(plan, scores)
            allocated = perf_counter()
            record = self.record(plan, decision.verify_lens, scores, told)
            stepped = perf_counter()
            self.policy.observe(record)
            observed = perf_counter()
            spans["plan"].append(planned - started)
            spans["allocate"].append(allocated - drafted)
            spans["observe"].append(observed - stepped)
            spans["together"].append(planned - started + allocated - drafted + observed - stepped)
        kept = {name: 1e6 * np.array(times[steps // 5 :]) for name, times in spans.items()}
        return {
            name: {
                "median_us": round(float(np.median(times)), 1),
                "mean_us": round(float(np.mean(times)), 1),
                "fast_us": round(float(np.quantile(times, 0.1)), 1),
            }
            for name, times in kept.items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=14.8, help="a plain step of 16 requests")
    parser.add_argument("--json", action="store_true", help="nothing but the JSON line")
    arguments = parser.parse_args()
    result = {
        "allocation_256x8": allocation(256, 8, 300),
        "allocation_16x12": allocation(16, 12, 300),
        **{
            f"{name}_{n}_{text}": Loop(name, n, 8, text).times(800)
            for name in ("adaptive", "off")
            for n in (1, 4, 8, 16, 256)
            for text in TEXTS
        },
    }
    share = {
        text: {
            key: round(result[f"adaptive_16_{text}"]["together"][key] / (1e3 * arguments.step_ms), 4)
            for key in ("median_us", "mean_us", "fast_us")
        }
        for text in TEXTS
    }
    if not arguments.json:
        for name, figures in result.items():
            print(f"{name:20} {figures}")
        print(f"share of a step of {arguments.step_ms} ms at 16 requests: {share}")
    print(json.dumps({**result, "step_ms": arguments.step_ms, "share": share}))


if __name__ == "__main__":
    main()
