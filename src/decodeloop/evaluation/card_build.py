"""A card from a run: one arm of its results, described by what is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from decodeloop.evaluation.bench import same_texts
from decodeloop.evaluation.card import (
    AcceptancePart,
    Card,
    IdentityPart,
    LoadPart,
    LosslessPart,
    Model,
    ModelsPart,
    SpeculationPart,
    StatisticsPart,
    SystemPart,
    ValidityPart,
    WorkloadPart,
    sealed,
)
from decodeloop.evaluation.card_measures import (
    ALL,
    CONFIDENCE,
    acceptance,
    classes_of,
    cliffs,
    latencies,
    load_point,
    mean_of,
    phase_times,
    quantiles,
    throughput,
)
from decodeloop.evaluation.plan import Arm, LoadKind, Plan
from decodeloop.evaluation.report_validity import validity, without_loops
from decodeloop.evaluation.results import RequestResult, Results


def build(
    results: Results,
    label: str,
    *,
    commit: str | None = None,
    artefacts: Mapping[str, str] = {},
    fresh: bool | None = None,
    sampling: Mapping[str, Any] | None = None,
    economics: Mapping[str, Any] | None = None,
) -> Card:
    """The card of arm `label`, against the plan's first arm.

    Raises KeyError for an arm that isn't there, ValueError where no block was finished.
    """
    arm, baseline = results.plan.arm(label), baseline_of(results.plan, label)
    levels = [level for level in results.plan.levels if results.complete_blocks(level)]
    if not levels:
        raise ValueError("no block was finished: there is nothing to make a card of")
    steady = results.steady(arm=label)
    by_class = {ALL: steady, **{str(c): results.steady(arm=label, request_class=c) for c in classes_of(steady)}}
    accepted = {name: part for name, own in by_class.items() if (part := acceptance(own)) is not None}
    closed, verdict, cutless = results.plan.load is LoadKind.CLOSED, validity(results), without_loops(results)
    return sealed(
        Card(
            identity=identity(results.plan, label, commit, artefacts),
            system=system(arm, results.plan.system, cold=results.cold(label)),
            models=models(arm),
            speculation=speculation(arm, accepted.get(ALL)),
            losslessness=losslessness(results, arm, baseline),
            workload=workload(results.plan, steady, sampling, fresh),
            load=load(results, label, levels),
            acceptance=accepted,
            time={name: took for name, own in by_class.items() if (took := phase_times(own)) is not None},
            latency=tuple(latencies(results, label, levels)),
            throughput=tuple(throughput(results, cutless, label, baseline, level) for level in levels),
            economics=economics,
            cliff=cliffs(results, label, baseline, levels) if baseline and closed else {},
            statistics=statistics(results, levels),
            validity=ValidityPart(valid=verdict.valid, faults=verdict.faults, caveats=verdict.caveats),
        )
    )


def baseline_of(plan: Plan, label: str) -> str | None:
    """The first arm; it has none itself."""
    first = plan.arms[0].label
    return first if first != label else None


def identity(plan: Plan, label: str, commit: str | None, artefacts: Mapping[str, str]) -> IdentityPart:
    return IdentityPart(
        id=f"{plan.id}/{label}",
        arm=label,
        baseline=baseline_of(plan, label),
        mode=plan.mode.value,
        date=plan.created_at,
        versions={"decodeloop": plan.version},
        commit=commit,
        artefacts=artefacts,
        command=plan.command or None,
    )


def losslessness(results: Results, arm: Arm, baseline: str | None) -> LosslessPart:
    if baseline is None:
        return LosslessPart(claimed=arm.lossless)
    equal, compared = same_texts(results, arm.label, baseline)
    test = "the same requests and seeds, whole answers compared by hash"
    return LosslessPart(claimed=arm.lossless, test=test, compared=compared, equal=equal)


def workload(
    plan: Plan, steady: Sequence[RequestResult], sampling: Mapping[str, Any] | None, fresh: bool | None
) -> WorkloadPart:
    return WorkloadPart(
        name=plan.workload.name,
        sha256=plan.workload.sha256,
        sources=plan.workload.sources,
        licence=plan.workload.licence,
        counts=plan.workload.counts,
        shares=plan.workload.shares,
        prompt_tokens=quantiles(r.prompt_tokens for r in steady if r.prompt_tokens is not None),
        output_tokens=quantiles(r.completion_tokens for r in steady if r.error is None),
        max_tokens=plan.max_tokens,
        sampling=sampling,
        fresh=fresh,
        looping_share=mean_of([float(r.loops) for r in steady if r.loops is not None]),
    )


def load(results: Results, label: str, levels: Sequence[float]) -> LoadPart:
    plan = results.plan
    return LoadPart(
        kind=plan.load.value,
        arrivals=plan.arrivals,
        speed=plan.speed,
        points=tuple(load_point(results, label, level) for level in levels),
    )


def statistics(results: Results, levels: Sequence[float]) -> StatisticsPart:
    return StatisticsPart(
        blocks=min(len(results.complete_blocks(level)) for level in levels),
        order="mirrored (ABBA), the next block begins with the next arm",
        estimator="paired log ratio a block, geometric mean, t interval over blocks",
        confidence=CONFIDENCE,
        seed=results.plan.seed,
        exclusions=("ramps of every turn", "unfinished blocks"),
    )


def system(arm: Arm, facts: Mapping[str, Any], *, cold: bool) -> SystemPart:
    """What the plan and the arm say; the rest stays unsaid. cold: no answer used the prefix cache."""
    known = {**facts, **{name: value for name, value in arm.settings.items() if name in SystemPart.__struct_fields__}}
    flags = {name: value for name, value in arm.settings.items() if name not in SystemPart.__struct_fields__}
    fields = {name: known[name] for name in SystemPart.__struct_fields__ if name in known}
    hardware = facts.get("hardware")
    unreset = "not used: by every answer's own count" if cold else None
    return SystemPart(
        **{
            **fields,
            "hardware": hardware,
            "engine": arm.engine or fields.get("engine"),
            "flags": {**flags, **({"request": dict(arm.fields)} if arm.fields else {})} or None,
            "prefix_cache": unreset if arm.reset == "none" else arm.reset,
        }
    )


def models(arm: Arm) -> ModelsPart:
    """settings.target, settings.draft_model_facts: objects with what is known of the two, if anything is; else the
    format that was asked for."""
    target, drafter = arm.settings.get("target") or {}, arm.settings.get("draft_model_facts")
    return ModelsPart(
        target=Model(**{"name": arm.model or None, "precision": arm.settings.get("dtype"), **target}),
        drafter=Model(**drafter) if drafter else None,
    )


def speculation(arm: Arm, accepted: AcceptancePart | None) -> SpeculationPart:
    asked = arm.fields.get("decodeloop") or {}
    settings = arm.settings
    off = asked.get("speculation") == "off" or arm.role == "off"
    return SpeculationPart(
        method="none" if off else str(asked.get("drafter") or settings.get("drafters") or "") or None,
        max_draft_len=0 if off else asked.get("draft_len") or settings.get("max_draft_len"),
        shape=None if off else settings.get("shape"),
        draft_sampling=settings.get("draft_sampling"),
        acceptance_rule=None if off else settings.get("verifier"),
        policy="off" if off else ("fixed" if asked.get("speculation") == "force" else settings.get("policy")),
        policy_version=settings.get("policy_version"),
        off_share=accepted.no_draft_share if accepted else None,
        synthetic=settings.get("synthetic"),
    )
