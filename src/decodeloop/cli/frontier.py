"""`decodeloop frontier`: one user's speed against a device's work, and what each configuration would be run at."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from decodeloop.cli import money as options
from decodeloop.cli.sections import show, show_json, show_validity
from decodeloop.evaluation.charts import style
from decodeloop.evaluation.frontier import goodputs, pareto, picks, points
from decodeloop.evaluation.journal import load
from decodeloop.evaluation.report_speed import frontier_section
from decodeloop.evaluation.report_validity import validity


def frontier(
    run: options.Run,
    devices: options.Devices = 1,
    price: Annotated[float, typer.Option(min=0.0, help="USD per device and hour; 0: no cost is told.")] = 0.0,
    ttft_ms: options.TtftMs = None,
    tpot_ms: options.TpotMs = None,
    svg: Annotated[Path | None, typer.Option(help="Write the plot of output tokens to this file.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Print a RUN's frontier. Exit code 1: objectives were given and no configuration keeps them; 3: invalid run."""
    results = load(run)
    slo = options.slo_of(ttft_ms, tpot_ms)
    found = points(results, devices=devices, slo=slo)
    if not found:
        raise ValueError(f"{run}: no block was finished at any load")
    valid = validity(results)
    section = frontier_section(results, devices=devices, slo=slo, usd_per_hour=price * devices)
    show_validity(valid)
    show([section])
    if svg is not None:
        svg.write_text(section.charts[0].svg.replace(">", f"><style>{style()}</style>", 1), encoding="utf-8")
    chosen = picks(found)
    if as_json:
        show_json(
            {
                "valid": valid.valid,
                "points": [asdict(each) for each in found],
                "frontier": {
                    name: [[each.arm, each.level] for each in pareto(found, total=total)]
                    for name, total in (("output", False), ("total", True))
                },
                "goodput": [{"arm": g.arm, "attainment": g.attainment, "per_s": g.per_s} for g in goodputs(found)],
                "picks": {each.arm: None if each.point is None else each.point.level for each in chosen},
            }
        )
    if not valid.valid:
        raise typer.Exit(options.EXIT_INVALID)
    if all(each.point is None for each in chosen):
        raise typer.Exit(options.EXIT_NO)
