"""A few requests for many: samples that keep the real volume, shares from elsewhere, texts for traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from decodeloop.evaluation.workloads.workload import Workload, WorkRequest
from decodeloop.types import RequestClass

CHARACTERS_PER_TOKEN = 4.0  # of English prose; only to choose texts of about a length


def sample(workload: Workload, per_class: int, *, seed: int) -> Workload:
    """At most `per_class` requests of each class, drawn evenly; weights keep each class's share of the volume.

    So rare classes are measured as well as frequent ones and still count for as little as they are.
    """
    if per_class < 1:
        raise ValueError("a sample has at least one request a class")
    rng = np.random.default_rng(seed)
    kept: dict[str, float] = {}
    for kind in workload.counts:
        own = [request for request in workload.requests if request.request_class is kind]
        chosen = rng.choice(len(own), min(per_class, len(own)), replace=False)
        scale = sum(request.weight for request in own) / sum(own[i].weight for i in chosen)
        kept |= {own[i].id: own[i].weight * scale for i in chosen.tolist()}
    requests = (replace(r, weight=kept[r.id]) for r in workload.requests if r.id in kept)
    return _normalised(workload, tuple(requests))


def weigh(workload: Workload, volumes: Mapping[RequestClass, float]) -> Workload:
    """Weights such that each class has its share of `volumes` (real counts, or shares of any scale).

    Raises ValueError for a class that has volume and no request, or a request and no volume.
    """
    wanted = {kind for kind, volume in volumes.items() if volume > 0.0}
    if odd := wanted ^ set(workload.counts):
        names = ", ".join(sorted(str(kind) for kind in odd))
        raise ValueError(f"volumes and requests must be of the same classes; only one of them has {names}")
    of_class = {kind: sum(r.weight for r in workload.requests if r.request_class is kind) for kind in wanted}
    requests = (
        replace(r, weight=r.weight * volumes[r.request_class] / of_class[r.request_class]) for r in workload.requests
    )
    return _normalised(workload, tuple(requests))


def filled(trace: Workload, texts: Workload, *, longest: int | None = None) -> Workload:
    """The trace's arrivals and answer lengths with texts of about the trace's prompt lengths.

    Each request gets, of the texts used least so far, the one nearest in length: lengths are followed as far as the
    texts go, and no text is made up. longest: caps max_tokens. Raises ValueError without texts.
    """
    pool = [request for request in texts.requests if request.has_text]
    if not pool:
        raise ValueError(f"workload {texts.name} has no texts to fill {trace.name} with")
    lengths = np.array([request.text_length / CHARACTERS_PER_TOKEN for request in pool])
    used = np.zeros(len(pool), dtype=np.int64)
    requests = []
    for request in trace.requests:
        far = np.abs(np.log((lengths + 1.0) / ((request.prompt_tokens or 0) + 1.0)))
        chosen = int(np.lexsort((far, used))[0])
        used[chosen] += 1
        answer = request.output_tokens if longest is None else min(request.output_tokens or longest, longest)
        text = pool[chosen]
        params = {**text.params, **({} if answer is None else {"max_tokens": answer})}
        requests.append(
            replace(
                request, request_class=text.request_class, prompt=text.prompt, messages=text.messages, params=params
            )
        )
    sources = (*trace.sources, *texts.sources)
    return replace(trace, name=f"{trace.name}+{texts.name}", requests=tuple(requests), sources=sources)


def slices(workload: Workload, size: int, count: int, *, seed: int) -> tuple[list[Sequence[WorkRequest]], bool]:
    """`count` slices of `size` requests, each with about the same classes, and whether no request comes twice.

    The classes are dealt out in turn and each class in an order of the seed, so that slices are alike. A drafter that
    remembers answers is flattered by requests that come again: serve slices that don't, where there are enough.
    """
    rng = np.random.default_rng(seed)
    decks = {
        kind: [own[i] for i in rng.permutation(len(own))]
        for kind in workload.counts
        if (own := [request for request in workload.requests if request.request_class is kind])
    }
    places = [((i + 0.5) / len(deck), kind, i) for kind, deck in decks.items() for i in range(len(deck))]
    dealt = [decks[kind][i] for _, kind, i in sorted(places)]
    if not dealt or size < 1:
        raise ValueError("a slice of nothing measures nothing")
    wanted = size * count
    repeated = [dealt[i % len(dealt)] for i in range(wanted)]
    return [repeated[i : i + size] for i in range(0, wanted, size)], wanted <= len(dealt)


def _normalised(workload: Workload, requests: tuple[WorkRequest, ...]) -> Workload:
    """Weights that average 1."""
    scale = len(requests) / sum(request.weight for request in requests)
    return replace(workload, requests=tuple(replace(r, weight=r.weight * scale) for r in requests))
