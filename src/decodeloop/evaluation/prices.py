"""What a device costs an hour: a dated table that is shipped as data and meant to be edited."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from decodeloop import config

SCHEMA = "decodeloop.prices/1"


@dataclass(frozen=True, slots=True)
class Span:
    """USD per device and hour."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.high:
            raise ValueError(f"a price span runs from a low of at least 0 up to a high, not {self.low} to {self.high}")

    @property
    def middle(self) -> float:
        return 0.5 * (self.low + self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """as_of: the month that the prices are of, YYYY-MM."""

    schema: str
    as_of: str
    source: str
    devices: Mapping[str, Span]
    currency: str = "USD"

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ValueError(f"schema {self.schema!r}, not {SCHEMA}")
        if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", self.as_of):
            raise ValueError(f"as_of {self.as_of!r} is no month (YYYY-MM)")

    def price(self, device: str) -> Price:
        """At the middle of the device's span. Raises ValueError with the choices."""
        for name, span in self.devices.items():
            if name.lower() == device.lower():
                said = f"{name}, middle of {span.low:.2f} to {span.high:.2f} ({self.source}, as of {self.as_of})"
                return Price(span.middle, span, said)
        raise ValueError(f"no price for device {device!r}; choose from {', '.join(self.devices)}, or give one an hour")


@dataclass(frozen=True, slots=True)
class Price:
    """usd_per_hour: of one device. span: what it might be as well. said: where it comes from, for the reader."""

    usd_per_hour: float
    span: Span
    said: str


def given(usd_per_hour: float) -> Price:
    """A price that the user named. Its span for the sensitivity: half to twice."""
    if not usd_per_hour >= 0.0:
        raise ValueError(f"a price is at least 0, not {usd_per_hour}")
    return Price(usd_per_hour, Span(usd_per_hour / 2, 2 * usd_per_hour), f"{usd_per_hour:g} USD/h, as given")


def read_prices(text: str | None = None, *, source: str = "prices") -> PriceTable:
    """The table in YAML `text`; None: the one that is shipped. Raises ValueError."""
    if text is None:
        text, source = files("decodeloop.evaluation").joinpath("prices.yaml").read_text("utf-8"), "prices.yaml"
    return config.load(text, PriceTable, env={}, source=source)
