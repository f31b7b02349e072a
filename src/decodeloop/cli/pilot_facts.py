"""What only a run itself knows, kept beside its results so that it can be judged again without being run again."""

from __future__ import annotations

from pathlib import Path

import msgspec

from decodeloop.evaluation.report_bound import Bound, bound_section
from decodeloop.evaluation.report_tokens import Predicted
from decodeloop.evaluation.report_words import Section, percent

NAME = "facts.json"


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """power: what could be read, in words; watts: None if nothing could. requests_ms, steps_ms: device time of the
    requests, and of the steps, of turns with one request at a time. predicted: what the cost surface says. bound: None
    where it couldn't be told."""

    power: str = "power was not measured: the pilot has not been run to an end"
    watts: float | None = None
    requests_ms: float = 0.0
    steps_ms: float = 0.0
    predicted: tuple[Predicted, ...] = ()
    bound: Bound | None = None


def read(folder: Path) -> Facts:
    """Raises ValueError for a file that is none."""
    path = folder / NAME
    if not path.exists():
        return Facts()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Facts)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: {error}") from error


def add(folder: Path, more: Facts) -> None:
    """Device times add up over a pilot's parts; the rest is the last part's."""
    old = read(folder)
    whole = msgspec.structs.replace(
        more,
        requests_ms=old.requests_ms + more.requests_ms,
        steps_ms=old.steps_ms + more.steps_ms,
        predicted=more.predicted or old.predicted,
        bound=more.bound or old.bound,
    )
    (folder / NAME).write_bytes(msgspec.json.encode(whole))


def sections(facts: Facts) -> tuple[Section, ...]:
    """Of a report."""
    bound = () if facts.bound is None else (bound_section(facts.bound),)
    if not facts.steps_ms:
        return bound
    share = percent(facts.requests_ms / facts.steps_ms, 2)
    lead = (
        f"Of {facts.steps_ms / 1e3:.1f} s that the steps of undisturbed turns took, {share} is in the times of single "
    )
    return (*bound, Section(title="Whose time it was", lead=f"{lead}requests (goal: within 1 %)."))
