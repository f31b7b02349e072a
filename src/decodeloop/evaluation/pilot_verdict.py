"""Go or no-go: criteria that were set in advance against what was measured, and whether something else were better."""

from __future__ import annotations

from collections.abc import Sequence

from decodeloop.evaluation.bench import same_texts
from decodeloop.evaluation.economics import Money
from decodeloop.evaluation.economics_run import Bill, bill, met
from decodeloop.evaluation.pilot import SPECULATING, Pilot
from decodeloop.evaluation.report_money import larger_batch
from decodeloop.evaluation.report_speed import cells
from decodeloop.evaluation.report_validity import validity
from decodeloop.evaluation.report_words import Answer, Check, Verdict, change, delta, percent, ratio
from decodeloop.evaluation.results import Results
from decodeloop.evaluation.statistics import attainment, never_slower


def judge(results: Results, pilot: Pilot, money: Money, *, left_out: Sequence[str] = ()) -> Verdict:
    """left_out: arms that were asked for and could not be tried, each with its reason.

    Raises ValueError where no block was finished at the judged level.
    """
    level, criteria = float(pilot.load.judged), pilot.criteria
    found = bill(results, pilot.candidate, level, money, criteria.slo)
    checks = tuple(
        check
        for check in (
            _blocks(results, pilot, level),
            _saving(found, criteria.saving),
            _class_loss(found, criteria.class_loss),
            _never_slower(results, pilot),
            _unchanged(results, pilot),
            _objectives(results, pilot, level),
        )
        if check is not None
    )
    valid = validity(results).valid
    passed = valid and all(check.passed for check in checks)
    answer = Answer.GO if passed else Answer.NO_GO if valid else Answer.INVALID
    return Verdict(
        answer=answer,
        headline=_headline(found, answer, checks),
        checks=checks,
        advice=(*_advice(results, pilot, found, money), *(f"Not tried: {said}" for said in left_out)),
    )


def _headline(found: Bill, answer: Answer, checks: Sequence[Check]) -> str:
    figure = f"{delta(found.delta)} device time, weighted by volume, at {found.level:g} at once"
    if answer is Answer.INVALID:
        return f"No answer: the run is invalid. {found.arm} against {found.baseline}: {figure}."
    missed = [check.name for check in checks if not check.passed]
    reasons = "every criterion is met" if not missed else f"not met: {', '.join(missed)}"
    return f"{found.arm} against {found.baseline}: {figure}; {reasons}."


def _blocks(results: Results, pilot: Pilot, level: float) -> Check:
    done = len(results.complete_blocks(level))
    least = pilot.budget.least_blocks
    return Check("enough blocks", done >= least, f"{done} finished, {least} needed, {pilot.budget.blocks} planned")


def _saving(found: Bill, least: float) -> Check:
    passed = found.delta.blocks >= 2 and found.delta.high <= -least
    hint = "" if passed else " (surely less)" if found.delta.low > -least else " (not shown)"
    return Check(f"saves at least {percent(least, 0)} of device time", passed, f"{delta(found.delta)}{hint}")


def _class_loss(found: Bill, most: float) -> Check:
    losing = [each for each in found.classes if each.delta.low > most]
    worst = max(found.classes, key=lambda each: each.delta.share)
    said = f"worst is {worst.request_class}, {delta(worst.delta)}"
    if losing:
        said = "; ".join(f"{each.request_class} {delta(each.delta)}" for each in losing)
    passed = not losing if found.delta.blocks >= 2 else None
    return Check(f"no class surely costs {percent(most, 0)} more", passed, said)


def _never_slower(results: Results, pilot: Pilot) -> Check:
    floor, measured = pilot.criteria.floor, cells(results, pilot.candidate)
    name = f"nowhere surely below {floor:g}x of plain decode speed"
    if not measured:
        return Check(name, None, "no cell has a decode speed")
    found = never_slower({f"{level:g} at once, {c}": logs for (level, c), logs in measured.items()}, floor=floor)
    worst = found.cells[found.worst]
    slower = [cell for cell, each in found.cells.items() if each.high < floor]
    said = f"worst of {len(measured)} cells: {found.worst}, {ratio(worst)}"
    said += f"; geometric mean {found.geometric_mean:.2f}x; inconclusive (error above 1 %): {len(found.inconclusive)}"
    passed = not slower if worst.blocks >= 2 else None
    return Check(name, passed, f"{len(slower)} slower; {said}" if slower else said)


def _unchanged(results: Results, pilot: Pilot) -> Check | None:
    if not pilot.criteria.unchanged:
        return None
    equal, compared = same_texts(results, pilot.candidate, results.plan.arms[0].label)
    name = "answers are the baseline's, character for character"
    if not compared:
        return Check(name, None, "no answers to compare")
    return Check(name, equal == compared, f"{equal} of {compared}")


def _objectives(results: Results, pilot: Pilot, level: float) -> Check | None:
    slo = pilot.criteria.slo
    if slo is None:
        return None
    blocks = results.complete_blocks(level)
    own = [[r for r in results.steady(arm=pilot.candidate, level=level) if r.block == block] for block in blocks]
    share = attainment([sum(met(r, slo) for r in each) for each in own], [len(each) for each in own])
    limits = [f"{n} {v:g} ms" for n, v in (("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms)) if v is not None]
    return Check(
        f"{percent(pilot.criteria.attained, 0)} of requests within {', '.join(limits)}",
        share.share >= pilot.criteria.attained,
        f"{percent(share.share)} [{100 * share.low:.0f}, {100 * share.high:.0f}]",
    )


def _advice(results: Results, pilot: Pilot, found: Bill, money: Money) -> list[str]:
    """What beats the candidate, whether or not it speculates."""
    said, better = [], []
    for arm in results.plan.arms[1:]:
        if arm.label == found.arm:
            continue
        against = bill(results, arm.label, found.level, money, baseline=found.arm)
        if against.delta.saves:
            better.append((against.delta.share, arm, against))
    others = [each for each in sorted(better, key=lambda b: b[0]) if each[1].role not in SPECULATING]
    if others and not found.delta.saves:
        said.append(f"Speculation is the wrong optimisation here: {others[0][1].label} saves, {found.arm} does not.")
    elif others:
        said.append(f"Speculation alone is not the best optimisation here: {others[0][1].label} saves more.")
    elif not found.delta.saves and not better:
        said.append(f"Speculation is not shown to pay here, and nothing else that was tried beats {found.baseline}.")
    for _, arm, against in sorted(better, key=lambda b: b[0]):
        unchanged = "its output is unchanged" if arm.lossless else "its output CHANGES: check quality before it counts"
        said.append(f"{arm.label} takes {delta(against.delta)} device time against {found.arm}; {unchanged}.")
    for larger in (level for level in results.plan.levels if level > found.level):
        batch = larger_batch(results, found.level, larger, money)
        if batch is not None:
            said.append(
                f"A larger batch, {found.baseline} at {larger:g} at once: {change(batch[0])} throughput, output "
                "unchanged, each user slower (see the frontier); worth it where that many requests are there at once."
            )
    return said
