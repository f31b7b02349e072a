"""The check of a black box: its answers against a reference's, as texts alone, by maximum mean discrepancy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decodeloop.evaluation.lossless import mmd
from decodeloop.evaluation.lossless.answers import Answer, Arm, Ask, Progress, Remembering, Sampling
from decodeloop.evaluation.lossless.outcome import Check, Control, Power

SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)  # of answers corrupted: the grid on which power is measured
CATCHES = 0.9
POWER_PERMUTATIONS = 1999


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """samples: answers a prompt and side. length: tokens compared. rounds: of simulation for the stated power."""

    samples: int
    length: int
    permutations: int
    rounds: int
    alpha: float


def check_texts(
    source: Remembering,
    asks: Sequence[Ask],
    effort: Effort,
    *,
    at_once: int,
    progress: Progress = lambda done, total: None,
) -> Check:
    """The plain arm is the reference, sampled twice as much: power is measured on it before the target is looked at.

    A failure needs a confirmation on answers drawn anew.
    """
    total = 3 * effort.samples * len(asks)
    sample = Sampling(source, asks, effort.samples, at_once)
    twice = Sampling(source, asks, 2 * effort.samples, at_once)
    reference = _texts(twice.drawn(Arm.PLAIN, 0, lambda done, _: progress(done, total)))
    power, share = _power(reference, effort)
    got = _texts(sample.drawn(Arm.SERVED, 1, lambda done, n: progress(total - n + done, total)))
    halves = [[answers[half::2] for answers in reference] for half in (0, 1)]
    found = _p_value(halves[0], got, effort, seed=0)
    confirmed = 1.0
    if found <= effort.alpha:
        fresh = [_texts(sample.drawn(arm, stream, progress)) for arm, stream in ((Arm.PLAIN, 2), (Arm.SERVED, 3))]
        confirmed = _p_value(fresh[0], fresh[1], effort, seed=1)
    bad = mmd.corrupted(halves[1], share, seed=2)
    caught = _p_value(halves[0], bad, effort, seed=3)
    fails = found <= effort.alpha and confirmed <= effort.alpha
    again = f", {confirmed:.3g} on fresh answers" if found <= effort.alpha else ""
    return Check(
        name="texts",
        claim="answers at temperature 1 follow the law of the reference's, as far as texts show it",
        passed=not fails,
        found=f"p-value {found:.3g}{again}, {effort.samples} answers a side to each of {len(asks)} prompts",
        measured={"p_value": found, "confirmed_p_value": confirmed},
        power=(power,),
        controls=(Control(f"{share:.0%} of the reference corrupted", caught <= effort.alpha, f"p-value {caught:.2g}"),),
        unsettled=found <= effort.alpha < confirmed,
    )


def _power(reference: mmd.Sample, effort: Effort) -> tuple[Power, float]:
    """The least share of corrupted answers that is caught often enough, by simulation; and what the control uses."""
    permutations = min(effort.permutations, POWER_PERMUTATIONS)
    share, caught = 1.0, 0.0
    for share in SHARES:
        caught = mmd.power_of(
            reference,
            share,
            length=effort.length,
            permutations=permutations,
            alpha=effort.alpha,
            rounds=effort.rounds,
            seed=0,
        )
        if caught >= CATCHES:
            break
    stated = Power(
        deviation="share of answers that go on as another prompt's likeliest does",
        size=share,
        probability=caught,
        samples=2 * effort.samples * len(reference),
        false_failure_rate=effort.alpha,
    )
    return stated, min(1.0, 1.5 * share)


def _p_value(one: mmd.Sample, other: mmd.Sample, effort: Effort, *, seed: int) -> float:
    return mmd.p_value(one, other, length=effort.length, permutations=effort.permutations, seed=seed)


def _texts(answers: Sequence[Sequence[Answer]]) -> list[list[mmd.Text]]:
    return [[answer.tokens for answer in each] for each in answers]
