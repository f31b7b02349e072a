"""`decodeloop results`: what other clients measured, as results and cards of ours; AIPerf is driven where installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import orjson
import typer

from decodeloop import __version__
from decodeloop.cli.bench import rows
from decodeloop.cli.measuring import open_workload, safe, table
from decodeloop.evaluation import card_build
from decodeloop.evaluation.card import encode
from decodeloop.evaluation.client.http import Address
from decodeloop.evaluation.journal import load, save
from decodeloop.evaluation.others import read_results
from decodeloop.evaluation.workloads.workload import WorkRequest

app = typer.Typer(name="results", help="Results of other clients: AIPerf, guidellm, vllm bench.", no_args_is_help=True)

Label = Annotated[str, typer.Option(help="What the configuration is called on its card.")]
Model = Annotated[str, typer.Option(help="The model's name at the endpoint.")]
Out = Annotated[Path, typer.Option(help="A directory for results and card.")]
AsJson = Annotated[bool, typer.Option("--json", help="End with one JSON line.")]


@app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(help="What the client wrote.")],
    form: Annotated[
        str,
        typer.Option(
            "--format", help="aiperf (profile_export.jsonl), guidellm (JSON) or vllm_bench (--save-detailed)."
        ),
    ],
    out: Out,
    label: Label = "imported",
    model: Model = "",
    as_json: AsJson = False,
) -> None:
    """Make results and a card of another client's file. Its pieces are estimated, and said to be."""
    _import(file, form, out, label, "", model, as_json)


@app.command("aiperf")
def aiperf_command(
    url: Annotated[str, typer.Argument(help="The endpoint.")],
    out: Out,
    model: Model,
    tokenizer: Annotated[str, typer.Option(help="An absolute path, or a hub name.")],
    workload: Annotated[Path | None, typer.Option(help="A workload file; without one, the mini-suite.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 1,
    requests: Annotated[int, typer.Option("--requests", min=1, help="How many in all.")] = 40,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Caps every answer.")] = None,
    program: Annotated[str, typer.Option(help="AIPerf's program; it has an environment of its own.")] = "aiperf",
    label: Label = "aiperf",
    as_json: AsJson = False,
) -> None:
    """Run AIPerf on an endpoint with a workload's requests, word for word, and import what it measured."""
    found = shutil.which(program)
    if found is None:
        raise ValueError(
            f"no program {program!r}: install AIPerf in an environment of its own, and name it by --program"
        )
    served = open_workload(workload, "workload", max(1, requests // 8 + 1), None, 0.0, 0)
    out.mkdir(parents=True, exist_ok=True)
    payloads = out / "payloads.jsonl"
    lines = [payload(request, model, max_tokens) for request in served.requests[:requests]]
    payloads.write_bytes(b"".join(line + b"\n" for line in lines))
    done = subprocess.run(
        command(found, Address.of(url).url, payloads, out / "aiperf", model, tokenizer, concurrency, len(lines)),
        check=False,
    )
    if done.returncode != 0:
        why = first_failure(out / "aiperf" / "profile_export.jsonl")
        raise RuntimeError(f"AIPerf ended with exit code {done.returncode}{f': {why}' if why else ''}")
    _import(out / "aiperf" / "profile_export.jsonl", "aiperf", out, label, url, model, as_json)


def first_failure(export: Path) -> str:
    """What the first request that failed was told; empty where none did, or nothing was written."""
    for line in export.read_bytes().splitlines() if export.exists() else ():
        error = orjson.loads(line).get("error")
        if error:
            return str(error.get("message") or error)[:300]
    return ""


def payload(request: WorkRequest, model: str, max_tokens: int | None) -> bytes:
    """The body that AIPerf sends as it is."""
    params = dict(request.params)
    if max_tokens is not None:
        params["max_tokens"] = min(int(params.get("max_tokens", max_tokens)), max_tokens)
    text = {"messages": request.messages} if request.prompt is None else {"prompt": request.prompt}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    return orjson.dumps({"model": model, **text, **streamed, **params})


def command(
    program: str, url: str, payloads: Path, out: Path, model: str, tokenizer: str, concurrency: int, requests: int
) -> Sequence[str]:
    options = {
        "--model": model,
        "--url": url,
        "--endpoint-type": "chat",
        "--input-file": payloads,
        "--custom-dataset-type": "raw_payload",
        "--dataset-sampling-strategy": "sequential",
        "--concurrency": concurrency,
        "--request-count": requests,
        "--tokenizer": tokenizer,
        "--output-artifact-dir": out,
        "--export-level": "records",
        "--ui": "simple",
    }
    typed = [str(part) for pair in options.items() for part in pair]
    return [program, "profile", "--streaming", "--use-server-token-count", *typed]


def _import(file: Path, form: str, out: Path, label: str, target: str, model: str, as_json: bool) -> None:
    results = read_results(file.read_text("utf-8"), form, label=label, target=target, model=model, version=__version__)
    run = out / "run.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    save(run, results)
    card = card_build.build(load(run), label)
    (out / f"{safe(label)}.card.json").write_bytes(encode(card))
    found = rows({label: card})
    for line in table(found):
        print(line)
    print(run)
    if as_json:
        print(orjson.dumps({"results": str(run), "card": card.sha256, "rows": found}).decode())
