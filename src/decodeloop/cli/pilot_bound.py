"""What a pilot finds out beside its verdict: how far the candidate is from the bound, by answers of the run itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from decodeloop.cli.arm_targets import Opened
from decodeloop.cli.embedded import EmbeddedTarget
from decodeloop.cli.pilot_arms import Steps
from decodeloop.engine.settings import EngineSettings
from decodeloop.evaluation.bound import MIXED, Judged, best_drafter, bounds, classes_of
from decodeloop.evaluation.client.answer import Answer
from decodeloop.evaluation.client.target import Target
from decodeloop.evaluation.counterfactual import Text
from decodeloop.evaluation.pilot import LoadAsked
from decodeloop.evaluation.report_bound import Bound
from decodeloop.evaluation.trust import calibrated
from decodeloop.evaluation.workloads.workload import WorkRequest
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.options import AdaptiveOptions
from decodeloop.speculation import Drafter, DrafterSetup
from decodeloop.speculation.drafters import drafters
from decodeloop.types import CostModel

PER_CLASS = 4
SECONDS = 20.0  # simulated, of a cell


@dataclass(slots=True)
class Listening:
    """A target whose answers are remembered: the longest to each request, of so many requests a class."""

    target: Target
    heard: dict[str, tuple[WorkRequest, tuple[int, ...]]] = field(default_factory=dict)

    async def serve(self, request: WorkRequest) -> Answer:
        answer = await self.target.serve(request)
        known = self.heard.get(request.id)
        taken = Counter(each.request_class for each, _ in self.heard.values())
        room = known is not None or taken[request.request_class] < PER_CLASS
        if answer.error is None and room and len(answer.token_ids) > max(1, 0 if known is None else len(known[1])):
            self.heard[request.id] = request, answer.token_ids
        return answer

    async def reset(self) -> str:
        return await self.target.reset()

    async def counters(self) -> Mapping[str, float]:
        return await self.target.counters()

    def close(self) -> None:
        self.target.close()


def bound_of(
    candidate: str,
    settings: EngineSettings,
    load: LoadAsked,
    opened: Opened,
    surface: CostModel | None,
    heard: Listening,
    steps: Steps,
) -> Bound | None:
    """surface: of the candidate's steps. None where there is no engine, no answer, no measured cost, or no drafter that
    may be asked freely."""
    engine, target = opened.engines.get(candidate), opened.targets.get(candidate)
    free = [name for name in settings.drafters if name in AdaptiveOptions().free_drafters]
    if engine is None or not isinstance(target, EmbeddedTarget) or not isinstance(surface, CostSurface):
        return None
    if not free or not heard.heard:
        return None
    texts = [text_of(target, request, answer) for request, answer in heard.heard.values()]
    setup = DrafterSetup(engine.engine.runner.info.vocab_size, engine.max_context, 1, settings.max_draft_len)

    def fresh(name: str) -> Drafter:
        return drafters.load(name)(setup)

    name = best_drafter({name: fresh(name) for name in free}, texts, settings.max_draft_len)
    opened_for = next(arm for arm, own in opened.engines.items() if own is engine)
    cost, trust = calibrated(CostSurface.from_json(surface.to_json()), steps.of(opened_for), source="at start")
    judged = Judged(
        policy=settings.policy,
        max_draft_len=settings.max_draft_len,
        draft_len=settings.draft_len,
        options=settings.policy_options,
        seconds=SECONDS,
    )
    wanted = [(str(kind), load.judged) for kind in classes_of(texts)] + [(MIXED, level) for level in load.levels]
    cells = tuple(bounds(texts, fresh(name), cost, judged, wanted))
    return Bound(policy=candidate, drafter=name, answers=len(texts), times_from=trust.said(), cells=cells)


def text_of(target: EmbeddedTarget, request: WorkRequest, answer: tuple[int, ...]) -> Text:
    prepared = target.prepare(request)
    return Text(request.request_class, prepared.tokens, answer, prepared.state)
