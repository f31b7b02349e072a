"""`decodeloop workload`: makes workload files: the mini-suite, imports of captures and traces, samples of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from decodeloop.cli.measuring import EXIT_NO
from decodeloop.cli.opening import stderr
from decodeloop.evaluation.workload import request_class
from decodeloop.evaluation.workloads.file import read_file, write
from decodeloop.evaluation.workloads.importing import Imported
from decodeloop.evaluation.workloads.redaction import PATTERNS, Redactor
from decodeloop.evaluation.workloads.sampling import filled, sample, weigh
from decodeloop.evaluation.workloads.suite import mini_suite
from decodeloop.evaluation.workloads.workload import Workload

app = typer.Typer(name="workload", help="Workload files: made, imported, sampled, redacted.", no_args_is_help=True)

Out = Annotated[Path, typer.Option("--out", help="The workload file to write.")]
Seed = Annotated[int, typer.Option(min=0)]
AsJson = Annotated[bool, typer.Option("--json", help="End with one JSON line.")]


@app.command("suite")
def suite_command(
    out: Out,
    per_class: Annotated[int, typer.Option(min=1, help="Distinct requests of each class.")] = 40,
    classes: Annotated[str | None, typer.Option(help="Of these classes only, comma-separated.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write the shipped mini-suite of enterprise request classes."""
    wanted = tuple(request_class(name.strip()) for name in classes.split(",")) if classes else ()
    _finish(mini_suite(per_class, seed=seed, classes=wanted), out, as_json)


@app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(help="What a gateway, a collector or a trace's authors wrote.")],
    out: Out,
    form: Annotated[
        str, typer.Option("--format", help="capture, otel, azure, mooncake, burstgpt, spec_bench, prompts or workload.")
    ],
    redact: Annotated[bool, typer.Option("--redact", help="Take out addresses, numbers, keys; see docs.")] = False,
    pattern: Annotated[
        list[str] | None, typer.Option(help="KIND=REGULAR EXPRESSION to be redacted as well; repeatable.")
    ] = None,
    per_class: Annotated[int | None, typer.Option(min=1, help="A sample that keeps each class's volume.")] = None,
    volumes: Annotated[str | None, typer.Option(help="Real volumes: class=number,...; instead of the file's.")] = None,
    first: Annotated[int | None, typer.Option(min=1, help="Only so many requests, in their order.")] = None,
    texts: Annotated[
        Path | None, typer.Option(help="For traces without texts: a workload file to take them from.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Caps the answers of a filled trace.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 when a line was malformed.")] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Import FILE as a workload. Malformed lines are counted and named; they stop nothing."""
    imported = read_file(file, form)
    for note in imported.notes():
        stderr.print(note, style="yellow", highlight=False, soft_wrap=True)
    workload = imported.workload
    if not workload.requests:
        raise ValueError(f"{file}: no request in it")
    if first is not None:
        workload = replace(workload, requests=workload.requests[:first])
    if texts is not None:
        workload = filled(workload, read_file(texts).workload, longest=max_tokens)
    if volumes is not None:
        workload = weigh(workload, {request_class(k): v for k, v in _volumes(volumes).items()})
    if per_class is not None:
        workload = sample(workload, per_class, seed=seed)
    if redact or pattern:
        workload = _redacted(workload, pattern or [])
    _finish(workload, out, as_json, imported)
    if strict and imported.faults:
        raise typer.Exit(EXIT_NO)


def _volumes(text: str) -> dict[str, float]:
    try:
        return {name: float(number) for name, number in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise ValueError(f"--volumes: {text!r} is no list like code_edit=3000,sql=120") from None


def _redacted(workload: Workload, patterns: list[str]) -> Workload:
    own = {}
    for each in patterns:
        kind, equals, pattern = each.partition("=")
        if not equals or not kind.isidentifier():
            raise ValueError(f"--pattern: {each!r} is no KIND=REGULAR EXPRESSION")
        own[kind] = pattern
    redactor = Redactor({**own, **PATTERNS})
    clean = redactor.workload(workload)
    counts = ", ".join(f"{count} {kind}" for kind, count in redactor.counts.items()) or "nothing"
    stderr.print(f"redacted: {counts}; names of people have no form: check, and add patterns", highlight=False)
    return clean


def _finish(workload: Workload, out: Path, as_json: bool, imported: Imported | None = None) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    write(out, workload)
    shares = {str(kind): round(share, 4) for kind, share in workload.shares.items()}
    print(f"{out}: {len(workload.requests)} requests, SHA-256 {workload.sha256}")
    for kind, count in workload.counts.items():
        print(f"  {kind:<18} {count:6d}  {shares[str(kind)]:.1%} of the volume")
    if as_json:
        found: dict[str, Any] = {"file": str(out), "sha256": workload.sha256, "requests": len(workload.requests)}
        faults = [[fault.line, fault.why] for fault in imported.faults[:100]] if imported else []
        left_out = dict(imported.left_out) if imported else {}
        print(orjson.dumps({**found, "shares": shares, "faults": faults, "left_out": left_out}).decode())
