"""Two cards side by side: first whether they can be compared at all, then by how much they differ.

And what a single card leaves out: the things without which a claim about speculation means little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from decodeloop.evaluation.card import Card
from decodeloop.evaluation.student import t_quantile

LEAST_BLOCKS = 8


class Weight(StrEnum):
    """What a difference does to a comparison."""

    FORBIDS = "forbids"  # the numbers are about different things
    CAUTIONS = "cautions"  # the numbers may differ for this reason alone
    SUBJECT = "subject"  # what is being compared


@dataclass(frozen=True, slots=True)
class Difference:
    what: str
    one: str
    other: str
    weight: Weight


@dataclass(frozen=True, slots=True)
class Shared:
    """Output rate of the other card over that of the first, at a level of both.

    The runs aren't paired: the interval (Welch) covers noise within each run, not what changed between the two.
    """

    level: float
    one: float
    other: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """left_out: what each card doesn't say, with why it matters."""

    differences: tuple[Difference, ...]
    shared: tuple[Shared, ...]
    left_out: tuple[tuple[str, ...], tuple[str, ...]]

    @property
    def comparable(self) -> bool:
        return bool(self.shared) and not any(d.weight is Weight.FORBIDS for d in self.differences)


def compare(one: Card, other: Card, *, level: float = 0.95) -> Comparison:
    return Comparison(tuple(differences(one, other)), shared(one, other, level), (left_out(one), left_out(other)))


GATES: tuple[tuple[str, Callable[[Card], Any], Weight], ...] = (
    ("mode of the result", lambda card: card.identity.mode, Weight.FORBIDS),
    ("validity of the run", lambda card: card.validity.valid, Weight.FORBIDS),
    ("workload (hash)", lambda card: card.workload.sha256, Weight.FORBIDS),
    ("longest answer", lambda card: card.workload.max_tokens, Weight.FORBIDS),
    ("sampling", lambda card: card.workload.sampling, Weight.FORBIDS),
    ("kind of load", lambda card: card.load.kind, Weight.FORBIDS),
    ("arrivals", lambda card: (card.load.arrivals, card.load.speed), Weight.FORBIDS),
    ("hardware", lambda card: card.system.hardware, Weight.CAUTIONS),
    ("clocks", lambda card: card.system.clocks, Weight.CAUTIONS),
    ("weights (hash)", lambda card: card.models.target.sha256, Weight.CAUTIONS),
    ("precision of the weights", lambda card: card.models.target.precision, Weight.CAUTIONS),
    ("chat template (hash)", lambda card: card.models.target.template_sha256, Weight.CAUTIONS),
    ("prefix cache", lambda card: card.system.prefix_cache, Weight.CAUTIONS),
    ("claim to be lossless", lambda card: card.losslessness.claimed, Weight.CAUTIONS),
    ("synthetic acceptance", lambda card: bool(card.speculation.synthetic), Weight.FORBIDS),
    ("whether requests come twice", lambda card: card.workload.fresh, Weight.CAUTIONS),
    ("model", lambda card: card.models.target.name, Weight.SUBJECT),
    ("engine", lambda card: (card.system.engine, card.system.engine_version), Weight.SUBJECT),
    ("speculation", lambda card: (card.speculation.method, card.speculation.max_draft_len), Weight.SUBJECT),
    ("policy", lambda card: card.speculation.policy, Weight.SUBJECT),
)


def differences(one: Card, other: Card) -> Iterator[Difference]:
    """In order of weight. An unknown value differs from a known one; two unknown ones don't, and are left_out's."""
    found = [
        Difference(what, _said(read(one)), _said(read(other)), weight)
        for what, read, weight in GATES
        if read(one) != read(other)
    ]
    if not one.validity.valid and not other.validity.valid:
        found.append(Difference("validity of the run", "invalid", "invalid", Weight.FORBIDS))
    lengths = one.workload.output_tokens, other.workload.output_tokens
    if all(lengths) and abs(math.log(lengths[0].mean / lengths[1].mean)) > 0.05:  # type: ignore[union-attr]
        said = [f"mean {length.mean:.1f}" for length in lengths if length]
        found.append(Difference("length of answers", said[0], said[1], Weight.CAUTIONS))
    weights = list(Weight)
    yield from sorted(found, key=lambda difference: weights.index(difference.weight))


def shared(one: Card, other: Card, level: float) -> tuple[Shared, ...]:
    theirs = {part.level: part for part in other.throughput}
    found = []
    for part in one.throughput:
        if part.level not in theirs:
            continue
        a, b = np.log(np.array(part.block_rates)), np.log(np.array(theirs[part.level].block_rates))
        mean = float(b.mean() - a.mean())
        reach = welch(a, b, level)
        found.append(
            Shared(
                part.level,
                part.output_tokens_per_s,
                theirs[part.level].output_tokens_per_s,
                math.exp(mean),
                math.exp(mean - reach),
                math.exp(mean + reach),
            )
        )
    return tuple(found)


def welch(a: Any, b: Any, level: float) -> float:
    """Half the width of the interval of the difference of two means, variances unequal; infinite below two blocks."""
    if len(a) < 2 or len(b) < 2:
        return math.inf
    parts = [float(np.var(own, ddof=1)) / len(own) for own in (a, b)]
    total = sum(parts)
    if total == 0.0:
        return 0.0
    degrees = total**2 / sum(part**2 / (len(own) - 1) for part, own in zip(parts, (a, b), strict=True))
    return t_quantile(0.5 + level / 2, degrees) * math.sqrt(total)


WANTED: tuple[tuple[Callable[[Card], bool], str], ...] = (
    (lambda card: card.identity.baseline is not None, "a baseline: speed against what?"),
    (
        lambda card: len({point.level for point in card.load.points}) > 1,
        "more than one load: speculation that pays alone may cost at load",
    ),
    (lambda card: card.load.kind == "open" or bool(card.cliff), "where it stops paying (the cliff)"),
    (lambda card: len(card.acceptance) > 2, "acceptance by class: an average hides the classes that lose"),
    (lambda card: bool(card.acceptance), "acceptance: did speculation run at all?"),
    (lambda card: bool(card.time), "draft and verify times: where the step's time goes"),
    (
        lambda card: card.losslessness.certificate is not None or card.losslessness.compared is not None,
        "a test that the output is the target's own",
    ),
    (lambda card: card.losslessness.null_compared is not None, "how often the baseline differs from itself"),
    (lambda card: bool(card.system.hardware), "the hardware"),
    (lambda card: card.system.clocks is not None, "clocks and power limits"),
    (lambda card: card.system.engine_version is not None, "the engine's version"),
    (lambda card: card.system.flags is not None, "the engine's flags"),
    (lambda card: card.system.prefix_cache is not None, "the prefix cache's state: whether it was emptied"),
    (lambda card: card.models.target.sha256 is not None, "which weights, by hash"),
    (lambda card: card.models.target.precision is not None, "the precision of the weights"),
    (lambda card: card.models.target.template_sha256 is not None, "the chat template"),
    (
        lambda card: card.models.drafter is None or card.models.drafter.training is not None,
        "what the drafter was trained on",
    ),
    (lambda card: card.speculation.acceptance_rule is not None or _off(card), "the acceptance rule"),
    (lambda card: card.speculation.synthetic is not None or _off(card), "whether acceptance is real"),
    (lambda card: card.workload.sampling is not None, "temperature and sampling"),
    (lambda card: bool(card.workload.licence), "the licence of the data"),
    (lambda card: card.workload.fresh is True, "fresh requests: answers that come again flatter drafters that copy"),
    (lambda card: card.workload.looping_share is not None, "the share of looping answers"),
    (lambda card: card.statistics.blocks >= LEAST_BLOCKS, f"{LEAST_BLOCKS} blocks or more"),
    (lambda card: card.economics is not None, "what it costs"),
)


def left_out(card: Card) -> tuple[str, ...]:
    return tuple(why for said, why in WANTED if not said(card))


def _off(card: Card) -> bool:
    return card.speculation.policy == "off"


def diff(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, one's value, other's value) of every leaf that differs, in two cards or any two JSON values."""
    a = msgspec.to_builtins(one) if isinstance(one, msgspec.Struct) else one
    b = msgspec.to_builtins(other) if isinstance(other, msgspec.Struct) else other
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in [*a, *(key for key in b if key not in a)]:
            yield from diff(a.get(key), b.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for place, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from diff(x, y, f"{path}[{place}]")
    elif a != b:
        yield path, a, b


def _said(value: Any) -> str:
    if value is None:
        return "not said"
    if isinstance(value, tuple):
        return " ".join("not said" if each is None else str(each) for each in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return str(value)
