"""`GET /metrics`: Prometheus text. Our names, and vLLM's where they mean the same, which dashboards read already."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from decodeloop.gateway.admission import Admission
from decodeloop.gateway.answers import AnswerCache
from decodeloop.gateway.fleet import Fleet
from decodeloop.gateway.meter import Histogram, Meter, ModelMeter
from decodeloop.gateway.metrics_policy import cliffs, verification_shares

__all__ = ["CONTENT_TYPE", "Exposition"]

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]
Counts = Mapping[Labels, float]

_COUNTER_NAME = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)(?:\{(.*)\})?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Timing:
    """A histogram, in seconds."""

    name: str
    help: str
    read: Callable[[ModelMeter], Histogram]
    vllm: str | None = None


@dataclass(frozen=True, slots=True)
class Total:
    """A counter: its value by the values of `labels`. name None: it is vLLM's alone."""

    name: str | None
    help: str
    read: Callable[[ModelMeter], Counts]
    labels: Labels = ()
    vllm: str | None = None


def _one(value: float) -> Counts:
    return {(): value}


def _vllm_finished(finished: Mapping[str, int]) -> Counts:
    told = {"stop": "stop", "tool_calls": "stop", "length": "length", "deadline": "length", "cancelled": "abort"}
    counts: Counter[Labels] = Counter()
    for reason, count in finished.items():
        if reason in told:
            counts[(told[reason],)] += count
    return counts


TIMINGS = (
    Timing(
        "time_to_first_token_seconds",
        "From a request's arrival to a choice's first content",
        lambda meter: meter.time_to_first_token,
        "time_to_first_token_seconds",
    ),
    Timing(
        "step_gap_seconds",
        "Between two pieces of a choice, each of which may hold several tokens",
        lambda meter: meter.step_gap,
        "inter_token_latency_seconds",
    ),
    Timing(
        "time_per_output_token_seconds",
        "From a choice's first piece to its last, divided by the tokens after the first piece",
        lambda meter: meter.time_per_output_token,
        "request_time_per_output_token_seconds",
    ),
    Timing(
        "request_latency_seconds",
        "From a request's arrival to a choice's end",
        lambda meter: meter.latency,
        "e2e_request_latency_seconds",
    ),
    Timing(
        "queue_time_seconds",
        "A request's wait before its first step",
        lambda meter: meter.queue_time,
        "request_queue_time_seconds",
    ),
)

TOTALS = (
    Total("prompt_tokens", "Of answered requests", lambda meter: _one(meter.prompt_tokens), vllm="prompt_tokens"),
    Total("generation_tokens", "Delivered", lambda meter: _one(meter.generation_tokens), vllm="generation_tokens"),
    Total(
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache",
        lambda meter: _one(meter.prompt_tokens),
        vllm="prefix_cache_queries",
    ),
    Total(
        "prefix_cache_hits",
        "Prompt tokens found in the prefix cache",
        lambda meter: _one(meter.cached_tokens),
        vllm="prefix_cache_hits",
    ),
    Total(
        "choices_finished",
        "By how they ended",
        lambda meter: {(reason,): count for reason, count in meter.finished.items()},
        labels=("finished_reason",),
    ),
    Total(
        None,
        "Choices, by how they ended",
        lambda meter: _vllm_finished(meter.finished),
        labels=("finished_reason",),
        vllm="request_success",
    ),
    Total(
        "verified_drafts",
        "Steps of a request in which a draft was verified",
        lambda meter: _one(meter.drafts),
        vllm="spec_decode_num_drafts",
    ),
    Total("drafted_tokens", "Proposed by drafters", lambda meter: _one(meter.drafted)),
    Total(
        "verified_tokens",
        "Draft tokens that the target looked at",
        lambda meter: _one(meter.verified),
        vllm="spec_decode_num_draft_tokens",
    ),
    Total(
        "accepted_tokens",
        "Draft tokens kept by the verdict",
        lambda meter: _one(meter.accepted),
        vllm="spec_decode_num_accepted_tokens",
    ),
    Total(
        "accepted_tokens_per_position",
        "Verified drafts accepted up to and including a position",
        lambda meter: {(str(place),): count for place, count in sorted(meter.accepted_per_position.items())},
        labels=("position",),
        vllm="spec_decode_num_accepted_tokens_per_pos",
    ),
    Total("discarded_tokens", "Thrown away by a stop or a cap after the verdict", lambda meter: _one(meter.discarded)),
    Total(
        "phase_seconds",
        "Requests' shares of their steps' time, and their wait",
        lambda meter: {(phase,): ms / 1e3 for phase, ms in meter.phases.items()},
        labels=("phase",),
    ),
    Total(
        "steps",
        "Decode steps of requests, by why their draft had its length",
        lambda meter: {(reason,): count for reason, count in meter.reasons.items()},
        labels=("reason",),
    ),
)


class Exposition(Collector):
    """Reads its sources when it is scraped."""

    def __init__(
        self,
        meter: Meter,
        fleet: Fleet,
        admission: Admission,
        cache: AnswerCache,
        *,
        more: Sequence[Callable[[], Iterator[Metric]]] = (),
    ) -> None:
        self._more = more
        self._meter, self._fleet, self._admission, self._cache = meter, fleet, admission, cache

    def text(self) -> bytes:
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        for timing in TIMINGS:
            for prefix, name in _names(timing.name, timing.vllm):
                yield self._timing(timing, prefix + name)
        for total in TOTALS:
            for prefix, name in _names(total.name, total.vllm):
                yield self._total(total, prefix + name)
        yield from self._loads()
        yield from self._http()
        yield from self._upstreams_own()
        yield from verification_shares(self._meter)
        yield from cliffs(self._fleet)
        for families in self._more:
            yield from families()

    def _timing(self, timing: Timing, name: str) -> Metric:
        family = HistogramMetricFamily(name, timing.help, labels=("engine", "model_name"))
        for key, meter in self._meter.models.items():
            histogram = timing.read(meter)
            family.add_metric(key, list(_cumulative(histogram)), sum_value=histogram.sum)
        return family

    def _total(self, total: Total, name: str) -> Metric:
        family = CounterMetricFamily(name, total.help, labels=("engine", "model_name", *total.labels))
        for key, meter in self._meter.models.items():
            for values, count in total.read(meter).items():
                family.add_metric((*key, *values), count)
        return family

    def _loads(self) -> Iterator[Metric]:
        loads = {self._key(name): upstream.load() for name, upstream in self._fleet.upstreams.items()}
        gauges = (
            ("num_requests_running", "Choices in the engine's step", {k: load.running for k, load in loads.items()}),
            ("num_requests_waiting", "Choices that wait for it", {k: load.waiting for k, load in loads.items()}),
            (
                "kv_cache_usage_perc",
                "Share of the KV cache in use, 0 to 1",
                {k: 1.0 - load.kv_free_fraction for k, load in loads.items()},
            ),
        )
        for name, text, values in gauges:
            for prefix, _ in _names(name, name):
                family = GaugeMetricFamily(prefix + name, text, labels=("engine", "model_name"))
                for key, value in values.items():
                    family.add_metric(key, value)
                yield family

    def _http(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "decodeloop_requests_in_flight", "Completions being answered", value=self._admission.in_flight
        )
        looked = CounterMetricFamily(
            "decodeloop_answer_cache", "Answers looked up, by what was found", labels=("result",)
        )
        looked.add_metric(("hit",), self._cache.hits)
        looked.add_metric(("miss",), self._cache.misses)
        yield looked
        yield GaugeMetricFamily("decodeloop_answer_cache_bytes", "Answers kept", value=self._cache.bytes)
        family = CounterMetricFamily(
            "decodeloop_http_responses", "By method, route and status", labels=("method", "route", "status")
        )
        for (method, route, status), count in self._meter.responses.items():
            family.add_metric((method, route, str(status)), count)
        yield family

    def _upstreams_own(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for upstream_name, upstream in self._fleet.upstreams.items():
            engine, model = self._key(upstream_name)
            for key, value in upstream.counters().items():
                name, labels = _parsed(key)
                family = families.setdefault(name, _family(name))
                family.add_sample(f"decodeloop_engine_{name}", {"engine": engine, "model_name": model, **labels}, value)
        yield from families.values()

    def _key(self, upstream: str) -> tuple[str, str]:
        models = self._fleet.upstreams[upstream].models()
        return upstream, models[0].id if models else ""


def _names(own: str | None, vllm: str | None) -> Iterable[tuple[str, str]]:
    if own is not None:
        yield "decodeloop_", own
    if vllm is not None:
        yield "vllm:", vllm


def _cumulative(histogram: Histogram) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip((*map(str, map(float, histogram.bounds)), "+Inf"), histogram.counts, strict=True):
        total += count
        yield bound, total


def _family(name: str) -> Metric:
    kind = "counter" if name.endswith("_total") else "gauge"
    return Metric(f"decodeloop_engine_{name.removesuffix('_total')}", "As the engine counts it", kind)


def _parsed(key: str) -> tuple[str, dict[str, str]]:
    found = _COUNTER_NAME.fullmatch(key)
    if found is None:
        raise ValueError(f"an upstream counts {key!r}, which is no metric name")
    return found[1], dict(_LABEL.findall(found[2] or ""))
