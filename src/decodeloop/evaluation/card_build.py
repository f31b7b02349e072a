"""A card from a run: one arm of its results, described by what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
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
from decodeloop.evaluation.plan import Arm, LoadKind
from decodeloop.evaluation.report_validity import validity, without_loops
from decodeloop.evaluation.results import Results


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
    plan, arm = results.plan, results.plan.arm(label)
    baseline = plan.arms[0].label if plan.arms[0].label != label else None
    levels = [level for level in plan.levels if results.complete_blocks(level)]
    if not levels:
        raise ValueError("no block was finished: there is nothing to make a card of")
    steady = results.steady(arm=label)
    by_class = {ALL: steady, **{str(c): results.steady(arm=label, request_class=c) for c in classes_of(steady)}}
    verdict = validity(results)
    accepted = {name: part for name, own in by_class.items() if (part := acceptance(own)) is not None}
    equal, compared = same_texts(results, label, baseline) if baseline else (None, None)
    cutless = without_loops(results)
    return sealed(
        Card(
            identity=IdentityPart(
                id=f"{plan.id}/{label}",
                arm=label,
                baseline=baseline,
                mode=plan.mode.value,
                date=plan.created_at,
                versions={"decodeloop": plan.version},
                commit=commit,
                artefacts=artefacts,
                command=plan.command or None,
            ),
            system=system(arm, plan.system),
            models=models(arm),
            speculation=speculation(arm, accepted.get(ALL)),
            losslessness=LosslessPart(
                claimed=arm.lossless,
                test="the same requests and seeds, whole answers compared by hash" if baseline else None,
                compared=compared,
                equal=equal,
            ),
            workload=WorkloadPart(
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
            ),
            load=LoadPart(
                kind=plan.load.value,
                arrivals=plan.arrivals,
                speed=plan.speed,
                points=tuple(load_point(results, label, level) for level in levels),
            ),
            acceptance=accepted,
            time={name: took for name, own in by_class.items() if (took := phase_times(own)) is not None},
            latency=tuple(latencies(results, label, levels)),
            throughput=tuple(throughput(results, cutless, label, baseline, level) for level in levels),
            economics=economics,
            cliff=cliffs(results, label, baseline, levels) if baseline and plan.load is LoadKind.CLOSED else {},
            statistics=StatisticsPart(
                blocks=min(len(results.complete_blocks(level)) for level in levels),
                order="mirrored (ABBA), the next block begins with the next arm",
                estimator="paired log ratio a block, geometric mean, t interval over blocks",
                confidence=CONFIDENCE,
                seed=plan.seed,
                exclusions=("ramps of every turn", "unfinished blocks"),
            ),
            validity=ValidityPart(valid=verdict.valid, faults=verdict.faults, caveats=verdict.caveats),
        )
    )


def system(arm: Arm, facts: Mapping[str, Any]) -> SystemPart:
    """What the plan and the arm say; the rest stays unsaid."""
    known = {**facts, **{name: value for name, value in arm.settings.items() if name in SystemPart.__struct_fields__}}
    flags = {name: value for name, value in arm.settings.items() if name not in SystemPart.__struct_fields__}
    fields = {name: known[name] for name in SystemPart.__struct_fields__ if name in known}
    hardware = facts.get("hardware")
    return SystemPart(
        **{
            **fields,
            "hardware": hardware,
            "engine": arm.engine or fields.get("engine"),
            "flags": {**flags, **({"request": dict(arm.fields)} if arm.fields else {})} or None,
            "prefix_cache": None if arm.reset == "none" else arm.reset,
        }
    )


def models(arm: Arm) -> ModelsPart:
    """settings.target, settings.drafter: objects with what is known of the two, if anything is."""
    target, drafter = arm.settings.get("target") or {}, arm.settings.get("draft_model_facts")
    return ModelsPart(
        target=Model(**{"name": arm.model or None, **target}), drafter=Model(**drafter) if drafter else None
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
