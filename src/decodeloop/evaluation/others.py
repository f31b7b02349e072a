"""Results of other clients as ours: AIPerf, guidellm and `vllm bench serve`. One arm, one turn a load.

They keep less than our own client: which request it was, and what each piece held, is mostly not told, so pieces are
estimated and said to be. What they measured is taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

import orjson

from decodeloop.evaluation.client.answer import spread
from decodeloop.evaluation.plan import Arm, Plan, WorkloadFacts
from decodeloop.evaluation.results import Drafting, RequestResult, Results, Turn
from decodeloop.types import RequestClass

UNKNOWN = "unknown to the importer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request as another client tells it; times in seconds on its own clock."""

    id: str
    sent_s: float
    ended_s: float
    stamps: tuple[float, ...] = ()
    tokens: int = 0
    prompt_tokens: int | None = None
    drafting: Drafting | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What one run of the client served, under its own word for the load (None: as much as was seen)."""

    level: float | None
    requests: Sequence[Seen]


def read_results(text: str, form: str, *, label: str, target: str = "", model: str = "", version: str = "") -> Results:
    """The results in `text`, a file of client `form`: aiperf (profile_export.jsonl), guidellm or vllm_bench (JSON).

    Raises ValueError for another format, and for a file that isn't of it.
    """
    if form not in FORMS:
        raise ValueError(f"no client {form!r}; choose from {', '.join(FORMS)}")
    try:
        loads = [load for load in FORMS[form](text) if load.requests]
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ValueError(f"that is no result file of {form} ({type(error).__name__}: {error})") from error
    if not loads:
        raise ValueError(f"no request in this result file of {form}")
    turns, requests, levels = [], [], []
    for load in loads:
        turn, own = _turn(load, label)
        if turn.level in levels:
            raise ValueError(f"two runs at load {turn.level:g} in one file: import them apart")
        levels.append(turn.level)
        turns.append(turn)
        requests += own
    count = len({request.id for request in requests})
    plan = Plan(
        id=f"{form}-{label}",
        created_at=turns[0].began_at,
        version=version,
        workload=WorkloadFacts(
            name=UNKNOWN, sha256="", requests=count, counts={"general_chat": count}, shares={"general_chat": 1.0},
            sources=(form,),
        ),
        arms=(Arm(label=label, target=target, model=model, note=f"measured by {form}"),),
        levels=tuple(levels),
        blocks=1,
        requests_per_turn=count,
    )  # fmt: skip
    # A turn there and one back is our own way; others take one.
    back = [Turn(**{**_fields(turn), "turn": 1, "seconds": 0.0, "tokens": 0, "requests": 0}) for turn in turns]
    return Results(plan, (*turns, *back), tuple(requests))


def aiperf(text: str) -> Iterator[Load]:
    """profile_export.jsonl: a request a line. Its inter-token latency is what follows the first token, per token."""
    seen = []
    for number, line in enumerate(filter(str.strip, text.splitlines())):
        row = orjson.loads(line)
        about, metrics = row["metadata"], row["metrics"]
        if str(about.get("benchmark_phase", "profiling")).lower() != "profiling" or about.get("was_cancelled"):
            continue
        sent_s = about["request_start_ns"] / 1e9
        tokens = int(_value(metrics, "output_sequence_length") or _value(metrics, "output_token_count") or 0)
        first_ms, whole_ms = _value(metrics, "time_to_first_token"), _value(metrics, "request_latency")
        stamps: tuple[float, ...] = () if first_ms is None else (sent_s + first_ms / 1e3,)
        if stamps and whole_ms is not None and tokens > 1:
            stamps = (*stamps, sent_s + whole_ms / 1e3)
        seen.append(
            Seen(
                id=f"{about.get('session_num', number)}-{number}",
                sent_s=sent_s,
                ended_s=about["request_end_ns"] / 1e9,
                stamps=stamps,
                tokens=tokens,
                prompt_tokens=_whole(_value(metrics, "input_sequence_length")),
                drafting=_aiperf_drafting(row.get("spec_decode_acceptance")),
                error=str(row["error"].get("message") or row["error"]) if row.get("error") else None,
            )
        )
    yield Load(None, seen)


def vllm_bench(text: str) -> Iterator[Load]:
    """`vllm bench serve --save-result --save-detailed`: times of every piece, tokens of each request."""
    row = orjson.loads(text)
    if "ttfts" not in row:
        raise ValueError("it has no times of single requests: run with --save-detailed")
    count = len(row["ttfts"])
    starts = row.get("start_times") or [0.0] * count
    seen = []
    for i in range(count):
        error = (row.get("errors") or [""] * count)[i]
        first_s = starts[i] + row["ttfts"][i]
        stamps = () if error else tuple(accumulate([first_s, *row["itls"][i]]))
        ended_s = stamps[-1] if stamps else first_s
        seen.append(
            Seen(
                id=str(i),
                sent_s=starts[i],
                ended_s=ended_s,
                stamps=stamps,
                tokens=int(row["output_lens"][i]),
                prompt_tokens=int(row["input_lens"][i]),
                error=error or None,
            )
        )
    level = row.get("max_concurrency")
    yield Load(None if level is None else float(level), seen)


def guidellm(text: str) -> Iterator[Load]:
    """benchmarks.json: first and last token of each request, and how many there were."""
    for benchmark in orjson.loads(text)["benchmarks"]:
        requests = benchmark["requests"]
        seen = []
        for kind in ("successful", "errored"):
            for number, row in enumerate(requests.get(kind) or ()):
                times = row["info"]["timings"]
                sent_s = times.get("request_start") or times["resolve_start"]
                ends = times.get("first_token_iteration"), times.get("last_token_iteration")
                stamps = tuple(float(at_s) for at_s in ends if at_s is not None)
                tokens = int(row.get("output_tokens") or 0)
                seen.append(
                    Seen(
                        id=str(row.get("request_id", f"{kind}-{number}")),
                        sent_s=sent_s,
                        ended_s=times.get("request_end") or times["resolve_end"],
                        stamps=stamps[:1] if tokens < 2 else stamps,
                        tokens=tokens,
                        prompt_tokens=_whole(row.get("prompt_tokens")),
                        error=None if kind == "successful" else str(row["info"].get("error") or kind),
                    )
                )
        strategy = (benchmark.get("config") or {}).get("strategy") or {}
        level = strategy.get("streams") or strategy.get("max_concurrency")
        yield Load(None if level is None else float(level), seen)


FORMS: Mapping[str, Callable[[str], Iterable[Load]]] = {
    "aiperf": aiperf,
    "guidellm": guidellm,
    "vllm_bench": vllm_bench,
}


def _turn(load: Load, label: str) -> tuple[Turn, list[RequestResult]]:
    start = min(each.sent_s for each in load.requests)
    end = max(each.ended_s for each in load.requests)
    busy = sum(each.ended_s - each.sent_s for each in load.requests)
    concurrency = busy / (end - start) if end > start else 1.0
    level = load.level or float(max(1, round(concurrency)))
    requests = [
        RequestResult(
            arm=label,
            level=level,
            block=0,
            turn=0,
            id=each.id,
            request_class=RequestClass.GENERAL_CHAT,
            due_s=each.sent_s - start,
            sent_s=each.sent_s - start,
            ended_s=each.ended_s - start,
            chunk_s=tuple(at_s - start for at_s in each.stamps),
            chunk_tokens=_sizes(each),
            exact_chunks=False,
            prompt_tokens=each.prompt_tokens,
            completion_tokens=each.tokens,
            drafting=each.drafting,
            error=each.error,
        )
        for each in load.requests
    ]
    began = datetime.fromtimestamp(start, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    turn = Turn(
        arm=label,
        level=level,
        block=0,
        turn=0,
        began_at=began,
        seconds=end - start,
        tokens=sum(each.tokens for each in load.requests),
        requests=len(requests),
        errors=sum(each.error is not None for each in load.requests),
        concurrency=concurrency,
    )
    return turn, requests


def _sizes(each: Seen) -> tuple[int, ...]:
    """One token in the first piece, as these clients reckon; the others evenly."""
    if len(each.stamps) < 2:
        return (each.tokens,) * len(each.stamps)
    return (1, *spread(each.tokens - 1, len(each.stamps) - 1))


def _aiperf_drafting(told: Mapping[str, Any] | None) -> Drafting | None:
    if not told:
        return None
    histogram = {int(length): int(count) for length, count in told["acceptance_histogram"].items()}
    return Drafting(
        drafts=sum(histogram.values()),
        verified=int(told["num_draft_tokens"]),
        accepted=int(told["num_accepted_draft_tokens"]),
        accepted_histogram=tuple(histogram.get(i, 0) for i in range(max(histogram, default=-1) + 1)),
    )


def _value(metrics: Mapping[str, Any], name: str) -> float | None:
    """Milliseconds for times, whatever unit they are told in."""
    told = metrics.get(name)
    if told is None:
        return None
    scale = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3}.get(str(told.get("unit")), 1.0)
    return float(told["value"]) * scale


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _fields(turn: Turn) -> dict[str, Any]:
    return {name: getattr(turn, name) for name in Turn.__slots__}
