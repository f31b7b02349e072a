"""Public traces of arrivals and lengths, without texts: Azure LLM inference 2023, Mooncake, BurstGPT. Both ways."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson

from decodeloop.evaluation.workloads.importing import NS, Imported, LeftOut, Row, collect, iso, nanoseconds, tokens
from decodeloop.evaluation.workloads.workload import Workload, WorkRequest
from decodeloop.types import RequestClass

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
NO_ANSWER = "no prompt or no answer"


def read_azure(lines: Iterable[str], name: str) -> Imported:
    """CSV of TIMESTAMP (UTC, seven decimals), ContextTokens, GeneratedTokens."""

    def parse(row: dict[str, str], number: int) -> Row:
        request = _sized(number, row["ContextTokens"], row["GeneratedTokens"])
        return Row(request, nanoseconds(row["TIMESTAMP"]))

    return _csv(lines, AZURE, parse, name=name, sources=("Azure LLM inference trace 2023",), licence="CC-BY-4.0")


def write_azure(workload: Workload) -> Iterator[str]:
    """Lines as the trace has them. Raises ValueError for a request without arrival or lengths."""
    start = nanoseconds(workload.began_at) if workload.began_at else 0
    yield ",".join(AZURE)
    for request in workload.requests:
        arrival_s, prompt, output = _lengths(request)
        stamp = iso(start + round(arrival_s * NS)).replace("T", " ")[:27]
        yield f"{stamp},{prompt},{output}"


def read_mooncake(lines: Iterable[str], name: str) -> Imported:
    """JSON lines of timestamp (ms), input_length, output_length, hash_ids (of the prompt's blocks of 512 tokens)."""

    def parse(line: str, number: int) -> Row:
        row = orjson.loads(line)
        prefix = tuple(int(id) for id in row.get("hash_ids", ()))
        request = _sized(number, row["input_length"], row["output_length"], prefix=prefix)
        return Row(request, round(float(row["timestamp"]) * 1e6))

    return collect(
        enumerate(lines, 1), parse, name=name, sources=("Mooncake trace",), licence="Apache-2.0", of_epoch=False
    )  # fmt: skip


def write_mooncake(workload: Workload) -> Iterator[str]:
    for request in workload.requests:
        arrival_s, prompt, output = _lengths(request)
        row: dict[str, Any] = {"timestamp": round(arrival_s * 1e3), "input_length": prompt, "output_length": output}
        yield orjson.dumps({**row, "hash_ids": list(request.prefix)}).decode()


def read_burstgpt(lines: Iterable[str], name: str) -> Imported:
    """CSV of Timestamp (s), Model, Request tokens, Response tokens, Total tokens, Log Type (and Session ID, later)."""

    def parse(row: dict[str, str], number: int) -> Row:
        prompt, output = row["Request tokens"], row["Response tokens"]
        request = _sized(number, prompt, output, session=row.get("Session ID") or None)
        return Row(request, round(float(row["Timestamp"]) * NS))

    return _csv(
        lines, BURSTGPT[:4], parse, name=name, sources=("BurstGPT",), licence="CC-BY-4.0", of_epoch=False
    )  # fmt: skip


def _sized(number: int, prompt: object, output: object, **fields: Any) -> WorkRequest:
    """A request of those lengths, named by its line."""
    sizes = tokens(prompt), tokens(output)
    if not all(sizes):
        raise LeftOut(NO_ANSWER)
    return WorkRequest(
        id=f"line-{number}",
        request_class=RequestClass.GENERAL_CHAT,
        prompt_tokens=sizes[0],
        output_tokens=sizes[1],
        **fields,
    )


def _lengths(request: WorkRequest) -> tuple[float, int, int]:
    if request.arrival_s is None or request.prompt_tokens is None or request.output_tokens is None:
        raise ValueError(f"request {request.id} has no arrival or no lengths: it can't be a line of a trace")
    return request.arrival_s, request.prompt_tokens, request.output_tokens


def _csv(
    lines: Iterable[str], columns: Iterable[str], parse: Callable[[dict[str, str], int], Row], **how: Any
) -> Imported:
    """Raises ValueError when the first line doesn't name the columns."""
    rest = iter(lines)
    head = [name.strip() for name in next(csv.reader([next(rest, "").lstrip("\ufeff")]), [])]
    lacking = [name for name in columns if name not in head]
    if lacking:
        raise ValueError(f"the first line has no column {', '.join(lacking)}; it has {', '.join(head) or 'nothing'}")

    def row(line: str, number: int) -> Row:
        try:
            values = next(csv.reader([line]), [])
        except csv.Error as error:
            raise ValueError(str(error)) from error
        if len(values) != len(head):
            raise ValueError(f"{len(values)} values for {len(head)} columns")
        return parse(dict(zip(head, values, strict=True)), number)

    return collect(enumerate(rest, 2), row, **how)
