"""Cost per task: what all the requests of a session or trace came to together.

An agent's task is many requests; a cheaper request that needs one more round is no saving. Tasks are told apart by the
session (or trace) that their requests name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """task: None where the request names no session or trace."""

    task: str | None
    usd: float
    seconds: float = 0.0  # sent -> ended


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCosts:
    """Over tasks. unnamed: requests that belong to none, and are in no figure."""

    tasks: int
    requests: int
    unnamed: int
    usd_mean: float
    usd_p50: float
    usd_p90: float
    requests_mean: float
    seconds_mean: float


def roll_up(requests: Iterable[TaskRequest]) -> TaskCosts | None:
    """None where no request names its task."""
    tasks: dict[str, list[TaskRequest]] = {}
    unnamed = 0
    for request in requests:
        if request.task is None:
            unnamed += 1
        else:
            tasks.setdefault(request.task, []).append(request)
    if not tasks:
        return None
    usd = np.array([sum(r.usd for r in own) for own in tasks.values()])
    p50, p90 = (float(value) for value in np.quantile(usd, [0.5, 0.9]))
    count = sum(len(own) for own in tasks.values())
    return TaskCosts(
        tasks=len(tasks),
        requests=count,
        unnamed=unnamed,
        usd_mean=float(usd.mean()),
        usd_p50=p50,
        usd_p90=p90,
        requests_mean=count / len(tasks),
        seconds_mean=sum(r.seconds for own in tasks.values() for r in own) / len(tasks),
    )
