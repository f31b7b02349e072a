"""Options of commands that measure: workload, arms, loads, blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WorkloadFile = Annotated[Path | None, typer.Argument(help="A workload file; without one, the shipped mini-suite.")]
Form = Annotated[str, typer.Option("--format", help="Of the file: workload, capture, prompts, spec_bench, ...")]
Arms = Annotated[
    list[str] | None,
    typer.Option(
        "--arm", help="off, adaptive, fixed:4, ngram:8, or LABEL=URL;key=value;... The first is the baseline."
    ),
]
Url = Annotated[str | None, typer.Option(help="The endpoint of arms that name none; without it, an engine in here.")]
Key = Annotated[str | None, typer.Option(help="Its API key; stored nowhere.")]
Model = Annotated[str, typer.Option(help="For engines in here: as for `serve`.")]
Blocks = Annotated[int, typer.Option(min=1, help="Repetitions that are paired; 8 at least for intervals to mean much.")]
PerTurn = Annotated[int, typer.Option("--requests", min=1, help="Measured requests an arm, a load and half a block.")]
PerClass = Annotated[int, typer.Option(min=1, help="Requests a class that are taken from the mini-suite.")]
Classes = Annotated[str | None, typer.Option(help="Of these request classes only, comma-separated.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Caps every answer.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="For requests that name none: servers' defaults differ.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the order of requests and of arrivals.")]
AsJson = Annotated[bool, typer.Option("--json", help="End with one JSON line.")]
