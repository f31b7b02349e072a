"""Comparing serving configurations over blocks: paired, in logarithms, and claimed jointly.

A block serves the same work with every arm; the machine's mood is shared within it. The estimate is the mean paired log
ratio with a t interval over blocks (a percentile bootstrap over eight blocks covers only 89 %).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decodeloop.evaluation.student import t_cdf, t_quantile

Logs = npt.NDArray[np.float64]

INCONCLUSIVE = 0.01  # standard error of a ratio beyond which a cell says nothing


@dataclass(frozen=True, slots=True)
class Ratio:
    """A speed against another. low, high: of the interval asked for. error: standard error of the logarithm."""

    ratio: float
    low: float
    high: float
    error: float
    blocks: int

    @property
    def inconclusive(self) -> bool:
        return not self.error <= INCONCLUSIVE


def log_ratios(ours: Sequence[float], theirs: Sequence[float]) -> Logs:
    """[blocks] log(ours / theirs), paired by block.

    Raises ValueError for unequal numbers of blocks, and for rates that aren't positive.
    """
    a, b = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"{len(a)} blocks of one arm and {len(b)} of the other are no pairs")
    if not np.all(a > 0) or not np.all(b > 0):
        raise ValueError("a block without a positive rate has no ratio")
    return np.log(a) - np.log(b)


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], *, level: float = 0.95, cells: int = 1) -> Ratio:
    """Geometric mean of ours / theirs over blocks, with a two-sided t interval.

    cells: how many such intervals must hold together (Sidak's correction). One block has no interval.
    """
    return ratio_of(log_ratios(ours, theirs), level=level, cells=cells)


def ratio_of(logs: Logs, *, level: float = 0.95, cells: int = 1) -> Ratio:
    """The same, from paired log ratios."""
    mean, blocks = float(np.mean(logs)), len(logs)
    if blocks < 2:
        return Ratio(math.exp(mean), 0.0, math.inf, math.inf, blocks)
    error = float(np.std(logs, ddof=1)) / math.sqrt(blocks)
    reach = t_quantile(0.5 + 0.5 * level ** (1.0 / cells), blocks - 1) * error
    return Ratio(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), error, blocks)


@dataclass(frozen=True, slots=True)
class NeverSlower:
    """Whether speculation is nowhere clearly slower. cells: name -> ratio with its simultaneous interval."""

    holds: bool
    cells: Mapping[str, Ratio]
    worst: str
    best: str
    geometric_mean: float
    inconclusive: tuple[str, ...]


def never_slower(cells: Mapping[str, Logs], *, floor: float = 0.98, level: float = 0.95) -> NeverSlower:
    """No cell's simultaneous upper bound is below `floor`, and the geometric mean over cells is at least 1.

    cells: name -> [blocks] paired log ratios. A cell whose standard error exceeds 1 % is listed as inconclusive: it
    neither supports the claim nor breaks it by chance; where all are, nothing is claimed.
    """
    if not cells:
        raise ValueError("no cell was measured")
    ratios = {name: ratio_of(logs, level=level, cells=len(cells)) for name, logs in cells.items()}
    mean = math.exp(sum(math.log(ratio.ratio) for ratio in ratios.values()) / len(ratios))
    slower = [name for name, ratio in ratios.items() if ratio.high < floor]
    inconclusive = tuple(name for name, ratio in ratios.items() if ratio.inconclusive)
    return NeverSlower(
        holds=not slower and mean >= 1.0 and len(inconclusive) < len(ratios),
        cells=ratios,
        worst=min(ratios, key=lambda name: ratios[name].ratio),
        best=max(ratios, key=lambda name: ratios[name].ratio),
        geometric_mean=mean,
        inconclusive=inconclusive,
    )


@dataclass(frozen=True, slots=True)
class AgainstBest:
    """Ours against the best of several, chosen on other blocks than it is compared on."""

    ratio: Ratio
    chosen: tuple[str, str]  # on the even blocks, on the odd ones


def against_best(ours: Sequence[float], others: Mapping[str, Sequence[float]], *, level: float = 0.95) -> AgainstBest:
    """Ours / the best of `others`: chosen on half the blocks, compared on the other half, both ways.

    Choosing and comparing on the same blocks would credit the winner with its luck. Raises ValueError below 4 blocks.
    """
    blocks = len(ours)
    if blocks < 4:
        raise ValueError(f"{blocks} blocks can't be split into two halves of two")
    logs = {name: log_ratios(ours, rates) for name, rates in others.items()}
    halves = np.arange(blocks) % 2 == 0, np.arange(blocks) % 2 == 1
    chosen = [min(logs, key=lambda name: float(logs[name][half].mean())) for half in halves]
    compared = np.concatenate([logs[chosen[1]][halves[0]], logs[chosen[0]][halves[1]]])
    return AgainstBest(ratio_of(compared, level=level), (chosen[0], chosen[1]))


def holm(p_values: Mapping[str, float], *, alpha: float = 0.05) -> dict[str, bool]:
    """Which hypotheses are rejected, the family-wise error at most alpha (Holm 1979)."""
    rejected = dict.fromkeys(p_values, False)
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        if p_values[name] > alpha / (len(p_values) - rank):
            break
        rejected[name] = True
    return rejected


def p_slower(logs: Logs) -> float:
    """One-sided: the chance of ratios as low as these if ours were no slower."""
    if len(logs) < 2:
        return 1.0
    error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    mean = float(np.mean(logs))
    if error == 0.0:
        return 0.0 if mean < 0.0 else 1.0
    return t_cdf(mean / error, len(logs) - 1)


def cliff(cells: Mapping[int, Ratio]) -> tuple[int | None, int | None]:
    """[last load whose lower bound gains, first load beyond it whose upper bound loses]; None: not reached."""
    gaining = [load for load, ratio in cells.items() if ratio.low > 1.0]
    last = max(gaining, default=None)
    losing = [load for load, ratio in cells.items() if ratio.high < 1.0 and (last is None or load > last)]
    return last, min(losing, default=None)


@dataclass(frozen=True, slots=True)
class Share:
    share: float
    low: float
    high: float
    trials: int


def attainment(met: Sequence[int], served: Sequence[int], *, level: float = 0.95) -> Share:
    """The share of requests that met an objective, its interval clustered by block.

    met, served: [blocks]. Requests of a block share its weather, so blocks, not requests, are the sample.
    """
    m, n = np.asarray(met, dtype=np.float64), np.asarray(served, dtype=np.float64)
    total, blocks = float(n.sum()), len(n)
    if not total:
        raise ValueError("no request was served")
    share = float(m.sum()) / total
    if blocks < 2:
        return Share(share, 0.0, 1.0, int(total))
    residuals = m - share * n
    error = math.sqrt(blocks / (blocks - 1) * float(np.square(residuals).sum())) / total
    reach = t_quantile(0.5 + level / 2, blocks - 1) * error
    return Share(share, max(share - reach, 0.0), min(share + reach, 1.0), int(total))


def confidence_sequence(logs: Logs, *, level: float = 0.95, sure_at: int = 20) -> tuple[Logs, Logs]:
    """[blocks] lower and upper bounds of the mean log ratio that hold at all blocks together, for canary roll-outs.

    Looking after every block and stopping when it pleases is allowed, from the second block on. For normal logs of
    unknown variance: those means whose t statistic, mixed over effect sizes N(0, g), has never reached 1 / (1 - level)
    (Lai 1976; Wang and Ramdas, arXiv 2310.03722), tightest at about `sure_at` blocks. Unbounded while blocks are few.
    """
    n = np.arange(1, len(logs) + 1, dtype=np.float64)
    mean = np.cumsum(logs) / n
    free = np.maximum(n - 1.0, 1.0)
    centred = np.asarray(logs) - (logs[0] if len(logs) else 0.0)  # a far mean would cost digits
    spread = np.cumsum(np.square(centred)) - np.square(np.cumsum(centred)) / n
    variance = np.maximum(spread, 0.0) / free
    alpha = 1.0 - level
    g = (-2.0 * math.log(alpha) + math.log(-2.0 * math.log(alpha) + 1.0)) / sure_at
    limit = np.power(np.sqrt(1.0 + n * g) / alpha, 2.0 / n)
    room = 1.0 - limit / (1.0 + n * g)
    bounded = (room > 0.0) & (n > 1)
    t2 = np.where(bounded, free * (limit - 1.0) / np.where(bounded, room, 1.0), 0.0)
    reach = np.where(bounded, np.sqrt(t2) * np.sqrt(variance / n), np.inf)
    return mean - reach, mean + reach
