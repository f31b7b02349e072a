"""A policy's beliefs in lines that can be read: what `GET /v1/policy` gives as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Entries = Sequence[Mapping[str, Any]]
SHOWN = 8  # positions of a draft, or points of a curve


def lines(described: Mapping[str, Any]) -> Iterator[str]:
    """Of what an engine's describe() gives. A policy that doesn't learn has little to say."""
    yield f"policy {described['policy']}, at most {described['max_draft_len']} drafted tokens"
    if "cost" in described:
        yield from _cost(described["cost"])
    for entry in described.get("survival", ()):
        survival = " ".join(f"{value:.2f}" for value in entry["survival"][:SHOWN])
        yield f"survival {_whose(entry)}: {survival} ({entry['observations'][0]:.0f} drafts)"
    for entry in described.get("calibration", ()):
        yield from _calibration(entry)
    for entry in described.get("cliff", ()):
        yield f"cliff {_whose(entry)} at {entry['context_tokens']} context tokens: " + "; ".join(_ends(entry))
    if "aim" in described:
        yield from _frontier(described["aim"])
    if "drift" in described:
        drift = described["drift"]
        yield f"drift: evidence {drift['evidence']:g}, alarm at {drift['alarm_at']:g}; {drift['alarms']} alarms"
    reasons = ", ".join(f"{reason} {count}" for reason, count in described.get("reasons", {}).items())
    if reasons:
        yield f"reasons: {reasons}"


def _whose(entry: Mapping[str, Any]) -> str:
    return f"{entry['class']} {entry['drafter']}"


def _cost(cost: Mapping[str, Any]) -> Iterator[str]:
    if "tokens" not in cost:
        yield f"cost surface: not measured yet ({cost.get('steps_seen', 0)} steps seen)"
        return
    every = max(len(cost["tokens"]) // SHOWN, 1)
    points = zip(cost["tokens"][::every], cost["ms"][::every], strict=True)
    yield "cost surface, ms of a step by tokens: " + ", ".join(f"{tokens}: {ms:.2f}" for tokens, ms in points)
    yield f"  spread {cost['spread']:.1%} of {cost['samples']} measurements; now {cost['drift']:+.1%} against them"


def _calibration(entry: Mapping[str, Any]) -> Iterator[str]:
    if not entry["labels"]:
        return
    found = (
        f"calibration {_whose(entry)}: log loss {entry['log_loss']:.3f} ({entry['log_loss_uncalibrated']:.3f} by the "
        f"drafter's word), Brier {entry['brier']:.3f}, {entry['labels']} labels"
    )
    errors = entry["survival_error"][:SHOWN]
    if errors:
        found += "; survival error " + " ".join(f"{error['error']:.3f}" for error in errors)
    yield found


def _ends(entry: Mapping[str, Any]) -> Iterator[str]:
    for name in ("adaptive", "fixed"):
        last, lost = entry[name]["ends_between"]
        alone = entry[name]["gain"]["1"]
        if last is None:
            ends = "no load gains"
        else:
            ends = f"gains up to load {last}" + ("" if lost is None else f", not at {lost}")
        yield f"{name} {alone:.2f}x alone, {ends}"


def _frontier(aim: Mapping[str, Any]) -> Iterator[str]:
    point = aim.get("point")
    reached = "" if point is None else f"; at {point['tokens_per_s']} tokens/s, {point['tokens_per_s_per_user']} a user"
    yield f"frontier {aim['frontier']:g} ({aim['objective']}){reached}"
