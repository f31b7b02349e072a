"""What commands that reckon in money share: options, the arm and the load that are judged, exit codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from decodeloop.evaluation.economics import Money
from decodeloop.evaluation.prices import Price, given, read_prices
from decodeloop.evaluation.results import Results
from decodeloop.types import Slo

EXIT_NO, EXIT_USAGE, EXIT_INVALID = 1, 2, 3

Run = Annotated[Path, typer.Argument(help="A results file, as bench, cliff and pilot write it.")]
Arm = Annotated[str | None, typer.Option(help="The configuration that is judged; else the adaptive one, or the last.")]
Level = Annotated[float | None, typer.Option(help="The load it would serve; else the lowest that was measured.")]
UsdPerHour = Annotated[float | None, typer.Option("--price", help="USD per device and hour: what you pay.")]
Device = Annotated[str | None, typer.Option(help="Instead of a price: a device of the price table, e.g. H100.")]
Prices = Annotated[Path | None, typer.Option(help="Your own price table (YAML); else the dated one that is shipped.")]
Devices = Annotated[int, typer.Option(min=1, help="That the measured server ran on.")]
Watts = Annotated[float | None, typer.Option(min=0.0, help="Its mean draw, where you measured it.")]
UsdPerKwh = Annotated[float, typer.Option(min=0.0, help="Where the device's price doesn't hold its power.")]
Pue = Annotated[float, typer.Option(min=1.0, help="Power usage effectiveness of the building.")]
TtftMs = Annotated[float | None, typer.Option(min=0.0, help="Objective: time to first token.")]
TpotMs = Annotated[float | None, typer.Option(min=0.0, help="Objective: time per output token.")]
AsJson = Annotated[bool, typer.Option("--json", help="End with one JSON line.")]


@dataclass(frozen=True, slots=True)
class Judged:
    arm: str
    level: float


def judged(results: Results, arm: str | None, level: float | None) -> Judged:
    """Raises ValueError with the choices."""
    labels = [each.label for each in results.plan.arms]
    if arm is None:
        adaptive = [each.label for each in results.plan.arms[1:] if each.role == "adaptive"]
        arm = (adaptive or labels)[-1]
    if arm not in labels[1:]:
        choices = ", ".join(labels[1:]) or "none: the run has one configuration only"
        raise ValueError(f"no configuration {arm!r} to judge against {labels[0]!r}; choose from {choices}")
    levels = results.plan.levels
    if level is None:
        level = min((each for each in levels if results.complete_blocks(each)), default=levels[0])
    if level not in levels:
        raise ValueError(f"no load {level:g} was measured; choose from {', '.join(f'{each:g}' for each in levels)}")
    return Judged(arm, level)


def price_of(usd_per_hour: float | None, device: str | None, prices: Path | None) -> Price:
    """Raises ValueError for both, and for neither."""
    if (usd_per_hour is None) == (device is None):
        raise ValueError("say what an hour costs: either --price USD or --device NAME (of the price table)")
    if usd_per_hour is not None:
        return given(usd_per_hour)
    table = read_prices() if prices is None else read_prices(prices.read_text("utf-8"), source=str(prices))
    return table.price(str(device))


def money_of(params: Mapping[str, Any]) -> Money:
    """From a command's parameters, by the names that they have here. Raises ValueError as `price_of` does."""
    return Money(
        price=price_of(params["price"], params["device"], params["prices"]),
        devices=params["devices"],
        watts=params["watts"],
        usd_per_kwh=params["usd_per_kwh"],
        pue=params["pue"],
    )


def slo_of(ttft_ms: float | None, tpot_ms: float | None) -> Slo | None:
    return None if ttft_ms is None and tpot_ms is None else Slo(ttft_ms, tpot_ms)


def power_said(money: Money) -> str:
    if money.watts is None:
        return "not told; only the device's price is counted."
    counted = f"{money.usd_per_kwh:g} USD/kWh" if money.usd_per_kwh else "held in the device's price"
    return f"{money.watts:g} W, as given; {counted}."
