"""Non-negative linear costs learned one measurement at a time, deaf to single outliers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

CLIP = 3.0  # scales: a measurement pulls no harder than this
FIRST_GAIN, LAST_GAIN = 0.5, 0.15  # share of a residual that one measurement corrects


class OnlineLinear:
    """y = theta . x, theta >= 0, by normalised least mean squares on residuals clipped at CLIP scales.

    theta: [J], at first `initial`. uncertainty: [J] how far off each may be: who of them answers for a residual.
    scale: the expected size of a residual.
    """

    def __init__(self, initial: Sequence[float], uncertainty: Sequence[float], scale: float) -> None:
        self.theta = [max(value, 0.0) for value in initial]
        self._variance = [value * value for value in uncertainty]
        self._scale, self._least = scale, scale / 20
        self.visits = 0

    def predict(self, x: Sequence[float]) -> float:
        return float(sum(map(mul, self.theta, x)))

    def loosen(self) -> None:
        """Things may have changed unseen: let the next measurements count like the first."""
        self.visits = 0
        self._scale = max(self._scale, sum(self.theta) / CLIP)

    def limit(self, place: int, most: float) -> None:
        """theta[place] can't be more than that."""
        self.theta[place] = min(self.theta[place], max(most, 0.0))

    def learn(self, x: Sequence[float], y: float) -> None:
        residual = y - self.predict(x)
        limit = CLIP * self._scale
        carried = list(map(mul, self._variance, x))
        total = sum(map(mul, carried, x))
        if total > 0.0:
            gain = max(FIRST_GAIN / (1 + self.visits / 4), LAST_GAIN)
            correction = gain * min(max(residual, -limit), limit) / total
            self.theta = [
                max(theta + correction * weight, 0.0) for theta, weight in zip(self.theta, carried, strict=True)
            ]
        seen = min(abs(residual), 3 * limit)
        self._scale = max(self._scale + 0.1 * (seen - self._scale), self._least)
        self.visits += 1
