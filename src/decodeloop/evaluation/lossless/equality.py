"""The check of token identity: speculative answers against plain ones, over a workload, in company and alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decodeloop.evaluation.lossless import identity
from decodeloop.evaluation.lossless.answers import Answer, Arm, Ask, Progress, Remembering
from decodeloop.evaluation.lossless.identity import Identity
from decodeloop.evaluation.lossless.outcome import Check, Control, Power
from decodeloop.evaluation.lossless.sampler import CATCHES, CONTROL


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """How speculative answers are asked for: which arm, and how many at once."""

    arm: Arm
    at_once: int


def check_identity(
    source: Remembering,
    asks: Sequence[Ask],
    companies: Sequence[Company],
    *,
    exact: bool,
    alpha: float,
    must_speculate: bool,
    progress: Progress = lambda done, total: None,
) -> Check:
    """Plain alone is the measure; plain in company is the noise floor; every company's answers are compared with it.

    exact: no answer may differ (a batch-invariant target under coupled noise, or at temperature 0). Otherwise the
    excess over the floor is tested at alpha, spread over the companies, and a failure needs a confirmation on answers
    drawn anew.

    Raises ValueError when the questions are too few to show anything.
    """
    if power_of(len(asks), 0.0, exact=exact, alpha=alpha / len(companies)).size >= 1.0:
        raise ValueError(f"{len(asks)} questions are too few: not even answers that all differ would show")
    each = alpha / len(companies)
    seen = _collect(source, asks, companies, threshold=None if exact else each, progress=progress)
    worst = max(seen.found, key=lambda one: (one.excess, one.differ))
    fails = any(one.differ if exact else one.p_value < each for one in seen.found)
    idle = must_speculate and bool(seen.accepted) and not sum(seen.accepted)
    floor = worst.floor / worst.answers
    return Check(
        name="identity",
        claim=_claim(asks, exact),
        passed=not fails,
        found=_told(worst, unsettled=seen.unsettled, idle=idle),
        measured={
            "answers": sum(one.answers for one in seen.found),
            "tokens": sum(one.tokens for one in seen.found),
            "differ": sum(one.differ for one in seen.found),
            "floor": worst.floor,
            "excess": worst.excess,
            "excess_below": worst.excess_below,
            "p_value": min(one.p_value for one in seen.found),
            "accepted": sum(seen.accepted),
        },
        power=(power_of(len(asks), floor, exact=exact, alpha=each),),
        controls=(_control(seen.plain, seen.again, floor, exact=exact, alpha=each),),
        idle=idle,
        unsettled=seen.unsettled,
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """plain, again: alone and in company. found: a comparison per company. accepted: of each answer that tells."""

    plain: Sequence[Answer]
    again: Sequence[Answer]
    found: Sequence[Identity]
    accepted: Sequence[int]
    unsettled: bool


def _collect(
    source: Remembering,
    asks: Sequence[Ask],
    companies: Sequence[Company],
    *,
    threshold: float | None,
    progress: Progress,
) -> _Seen:
    """threshold: p-values below it need a confirmation on fresh answers of both sides."""
    total = len(asks) * (len(companies) + 2)

    def part(number: int) -> Progress:
        return lambda done, _: progress(number * len(asks) + done, total)

    most = max(company.at_once for company in companies)
    plain = source.collect(asks, Arm.PLAIN, at_once=1, progress=part(0))
    again = source.collect(asks, Arm.PLAIN, at_once=most, round=1, progress=part(1))
    found: list[Identity] = []
    accepted: list[int] = []
    unsettled = False
    for number, company in enumerate(companies):
        got = source.collect(asks, company.arm, at_once=company.at_once, progress=part(number + 2))
        compared = _compared(plain, again, got)
        if threshold is not None and compared.p_value < threshold:
            fresh = source.collect(asks, company.arm, at_once=company.at_once, round=2)
            compared = _compared(plain, source.collect(asks, Arm.PLAIN, at_once=most, round=2), fresh)
            unsettled = unsettled or compared.p_value >= threshold
        found.append(compared)
        accepted += [answer.accepted for answer in got if answer.accepted is not None]
    return _Seen(plain, again, found, accepted, unsettled)


def _told(worst: Identity, *, unsettled: bool, idle: bool) -> str:
    return (
        f"{worst.differ} of {worst.answers} answers differ from plain, {worst.floor} of {worst.answers} plain ones "
        f"do in company; excess {worst.excess:.1%}, below {worst.excess_below:.1%} at 95 %"
        f"{'; more before they were drawn anew' if unsettled else ''}"
        f"{'; nothing was accepted: speculation did not run' if idle else ''}"
    )


def power_of(answers: int, floor: float, *, exact: bool, alpha: float) -> Power:
    """Known before anything is asked, but for the floor."""
    if exact:
        size = identity.detectable_share(answers, CATCHES)
    else:
        size = identity.detectable_excess(answers, round(floor, 2), alpha=alpha, power=CATCHES)
    return Power(
        deviation="share of answers changed" + ("" if exact else f", over a noise floor of {floor:.0%}"),
        size=size,
        probability=CATCHES,
        samples=answers,
        false_failure_rate=0.0 if exact else alpha,
    )


def _control(plain: Sequence[Answer], again: Sequence[Answer], floor: float, *, exact: bool, alpha: float) -> Control:
    """Plain answers in company, a share of them changed: as if speculation had done it."""
    share = min(1.0, CONTROL * power_of(len(plain), floor, exact=exact, alpha=alpha).size)
    texts = [answer.tokens for answer in again]
    bad = identity.corrupted(texts, share, seed=0)
    found = identity.compare([answer.tokens for answer in plain], texts, bad)
    caught = found.differ > 0 if exact else found.p_value < alpha
    return Control(f"{share:.1%} of answers changed", caught, f"{found.differ} differ, p-value {found.p_value:.2g}")


def _compared(plain: Sequence[Answer], again: Sequence[Answer], got: Sequence[Answer]) -> Identity:
    return identity.compare(*([answer.tokens for answer in answers] for answers in (plain, again, got)))


def _claim(asks: Sequence[Ask], exact: bool) -> str:
    temperatures = " and ".join(f"{t:g}" for t in sorted({ask.temperature for ask in asks}))
    says = "are the plain ones, token for token" if exact else "differ from plain ones no more than plain ones do"
    return f"speculative answers at temperature {temperatures} {says}"
