"""What tokens are sold for, and what they cost. Money is whole billionths of a currency unit: sums are exact."""

from __future__ import annotations

from dataclasses import dataclass

from decodeloop.types import Usage

__all__ = ["FREE", "NANOS", "Charge", "Price", "nanos"]

NANOS = 10**9
PER_MILLION = 10**6
MOST_PRICE = 1e9  # a thousand a token; beyond it money would overflow a store's column


def nanos(amount: float) -> int:
    """`amount` of a currency in billionths."""
    return round(amount * NANOS)


@dataclass(frozen=True, slots=True)
class Price:
    """Currency units per million tokens; `second_cost` is what a second of the machine costs us."""

    prompt: float = 0.0
    cached: float = 0.0  # prompt tokens that the prefix cache held
    completion: float = 0.0
    second_cost: float = 0.0

    def __post_init__(self) -> None:
        for price in (self.prompt, self.cached, self.completion, self.second_cost):
            if not 0 <= price <= MOST_PRICE:
                raise ValueError(f"prices must be between 0 and {MOST_PRICE:g}, not {price:g}")

    @property
    def ceiling(self) -> float:
        """The dearest token's price per million."""
        return max(self.prompt, self.cached, self.completion)

    def of(self, usage: Usage) -> int:
        """What `usage` is sold for, in nanos, each kind rounded up: a bound on tokens is a bound on money."""
        fresh = usage.prompt - usage.cached
        return self.prompt_nanos(fresh) + self.cached_nanos(usage.cached) + self.completion_nanos(usage.completion)

    def prompt_nanos(self, tokens: int) -> int:
        return _per_million(self.prompt, tokens)

    def cached_nanos(self, tokens: int) -> int:
        return _per_million(self.cached, tokens)

    def completion_nanos(self, tokens: int) -> int:
        return _per_million(self.completion, tokens)

    def at_most(self, usage: Usage) -> int:
        """A bound on what up to `usage` can be sold for, whatever of its prompt turns out to be cached."""
        dearer = nanos(max(self.prompt, self.cached))
        return _up(dearer * usage.prompt) + 1 + self.completion_nanos(usage.completion)


FREE = Price()


@dataclass(frozen=True, slots=True)
class Charge:
    """What counts against limits, by their units."""

    requests: int = 0
    tokens: int = 0
    nanos: int = 0


def _per_million(price: float, tokens: int) -> int:
    return _up(nanos(price) * tokens)


def _up(amount: int) -> int:
    return -(-amount // PER_MILLION)
