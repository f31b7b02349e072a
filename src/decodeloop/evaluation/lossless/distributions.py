"""The check of laws at temperature > 0: answers with speculation and without, by token and by pairs of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from decodeloop.evaluation.lossless.answers import END, Answer, Arm, Ask, Progress, Remembering, Sampling
from decodeloop.evaluation.lossless.contingency import CELLS, Evidence, against_each_other, detectable
from decodeloop.evaluation.lossless.outcome import Check, Control, Power
from decodeloop.evaluation.lossless.sampler import CATCHES, CONTROL

Samples = Sequence[Sequence[Answer]]  # [prompts][samples]


def check_distributions(
    source: Remembering,
    asks: Sequence[Ask],
    *,
    samples: int,
    length: int,
    arm: Arm,
    at_once: int,
    alpha: float,
    must_speculate: bool,
    progress: Progress = lambda done, total: None,
) -> Check:
    """asks: one a prompt; each is asked `samples` times a mode, all with seeds of their own.

    The law of each of the first `length` tokens, and of each pair of neighbours, are compared: 2 length - 1 tests share
    alpha. A failure needs a confirmation on answers drawn anew.
    """
    sample = Sampling(source, asks, samples, at_once)
    plain = sample.drawn(Arm.PLAIN, 0, lambda done, n: progress(done, 2 * n))
    got = sample.drawn(arm, 1, lambda done, n: progress(n + done, 2 * n))
    each = alpha / (2 * length - 1)
    tests = _tests(plain, got, length)
    worst = min(tests, key=lambda name: tests[name].p_value)
    first = tests[worst].p_value
    if first < each:
        fresh_plain, fresh = sample.drawn(Arm.PLAIN, 2, progress), sample.drawn(arm, 3, progress)
        tests = {worst: _tests(fresh_plain, fresh, length)[worst]}
    size = power_of(samples, len(asks), length=length, alpha=alpha)
    accepted = [answer.accepted for answers in got for answer in answers if answer.accepted is not None]
    idle = must_speculate and bool(accepted) and not sum(accepted)
    least = tests[worst]
    return Check(
        name="distributions",
        claim="at temperature 1, speculative tokens and pairs of tokens follow the law of plain ones",
        passed=least.p_value >= each,
        found=(
            f"least of {2 * length - 1} p-values {least.p_value:.3g} ({worst}), {samples} answers a mode to each of "
            f"{len(asks)} prompts{f'; {first:.3g} before these were drawn anew' if first < each else ''}"
            f"{'; nothing was accepted: speculation did not run' if idle else ''}"
        ),
        measured={"p_value": least.p_value, "distance": least.distance, "accepted": sum(accepted)},
        power=(size,),
        controls=(_control(plain, min(1.0, CONTROL * size.size), length, each),),
        idle=idle,
        unsettled=first < each <= least.p_value,
    )


def power_of(samples: int, prompts: int, *, length: int, alpha: float) -> Power:
    each = alpha / (2 * length - 1)
    size = detectable(samples, groups=prompts, alpha=each, power=CATCHES, two_samples=True)
    return Power(
        deviation=f"total variation of a token's or pair's {CELLS} likeliest values, in every prompt",
        size=size,
        probability=CATCHES,
        samples=2 * samples * prompts,
        false_failure_rate=alpha,
    )


def _tests(one: Samples, other: Samples, length: int) -> dict[str, Evidence]:
    spans = [(i, i + 1) for i in range(length)] + [(i, i + 2) for i in range(length - 1)]
    return {
        f"tokens {start + 1}-{end}" if end > start + 1 else f"token {end}": against_each_other(
            (_counts(a, start, end), _counts(b, start, end)) for a, b in zip(one, other, strict=True)
        )
        for start, end in spans
    }


def _counts(answers: Sequence[Answer], start: int, end: int) -> Mapping[Hashable, int]:
    return Counter(answer.padded(end)[start:end] for answer in answers)


def _control(plain: Samples, share: float, length: int, alpha: float) -> Control:
    """Halves of the plain answers; in one of them a share is moved to the likeliest answer, as greed would."""
    halves = [[answers[half::2] for answers in plain] for half in (0, 1)]
    share = min(1.0, share * 2.0**0.5)  # of half the answers
    bad = [_moved(answers, round(share * len(answers))) for answers in halves[1]]
    tests = _tests(halves[0], bad, min(length, 2))
    least = min(test.p_value for test in tests.values())
    return Control(f"{share:.1%} of answers moved to another", least < alpha, f"p-value {least:.2g}")


def _moved(answers: Sequence[Answer], count: int) -> list[Answer]:
    """To the most frequent beginning; away from it, where most have it."""
    starts = [answer.padded(2) for answer in answers]
    ranked = [start for start, _ in Counter(starts).most_common(2)]
    common = [i for i, start in enumerate(starts) if start == ranked[0]]
    if 2 * len(common) < len(starts):
        goal, moving = ranked[0], [i for i, start in enumerate(starts) if start != ranked[0]]
    else:
        goal, moving = ranked[1] if len(ranked) > 1 else (END, END), common
    chosen = set(moving[:count])
    return [Answer(goal) if i in chosen else answer for i, answer in enumerate(answers)]
