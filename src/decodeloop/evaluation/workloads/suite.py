"""The mini-suite: enterprise request classes, written for this project, so that a first measurement needs no traffic.

It is no substitute for own traffic: acceptance depends on it. Every text has alternatives in it, so that thousands of
distinct requests come of a few texts and no drafter meets the same one twice.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import numpy as np
import orjson

from decodeloop.evaluation.workload import request_class
from decodeloop.evaluation.workloads.workload import Workload, WorkRequest
from decodeloop.types import RequestClass

NAME = "mini-suite"
CHOICE = re.compile(r"\[\[(.+?)\]\]")
TRIES = 60


def mini_suite(per_class: int, *, seed: int = 0, classes: tuple[RequestClass, ...] = ()) -> Workload:
    """`per_class` distinct requests of each class; classes: of these only, () for all.

    Raises ValueError for a class that the suite lacks, and for more requests than its texts have variants.
    """
    rng = np.random.default_rng(seed)
    texts: dict[RequestClass, list[dict[str, Any]]] = {}
    for line in files("decodeloop.evaluation").joinpath("data/mini_suite.jsonl").read_bytes().splitlines():
        text = orjson.loads(line)
        texts.setdefault(request_class(text["class"]), []).append(text)
    if lacking := set(classes) - set(texts):
        raise ValueError(f"the mini-suite has no {', '.join(sorted(lacking))}; it has {', '.join(texts)}")
    requests = []
    for kind in classes or tuple(texts):
        seen: set[bytes] = set()
        for i in range(per_class):
            own = texts[kind]
            turned = (own[(i + j) % len(own)] for j in range(len(own)))
            found = next((made for text in turned if (made := _variant(text, rng, seen)) is not None), None)
            if found is None:
                raise ValueError(f"the mini-suite has only {i} distinct requests of class {kind}; ask for fewer")
            messages, params = found[0], {**found[1], "seed": int(rng.integers(2**31))}
            id = f"{kind}-{i:04d}"
            requests.append(WorkRequest(id=id, request_class=kind, messages=messages, params=params))
    return Workload(name=NAME, requests=tuple(requests), sources=("decodeloop mini-suite",), licence="Apache-2.0")


def _variant(
    text: dict[str, Any], rng: np.random.Generator, seen: set[bytes]
) -> tuple[tuple[dict[str, str], ...], dict[str, Any]] | None:
    """One that wasn't seen; None: there hardly is another.

    A choice that occurs twice in a text is made once: edits must agree with themselves.
    """
    for _ in range(TRIES):
        made: dict[str, str] = {}

        def choose(found: re.Match[str], made: dict[str, str] = made) -> str:
            options = found[1].split("||")
            return made.setdefault(found[1], options[int(rng.integers(len(options)))])

        messages = tuple({**each, "content": CHOICE.sub(choose, each["content"])} for each in text["messages"])
        if (key := orjson.dumps(messages)) not in seen:
            seen.add(key)
            return messages, dict(text["params"])
    return None
