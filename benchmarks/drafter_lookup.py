"""What a free drafter costs a token, by context length, and how often it is right.

    python benchmarks/drafter_lookup.py [--text FILE ...] [--python] [--json]

Reads real text (by default the standard library's sources, cut into words), lets each drafter index a context of 1k, 8k
and 100k tokens, then feeds it the text that follows token by token, asking for a draft each time. Exit status 1 when a
token at 100k costs more than twice a token at 1k. --python measures the look-ups written in Python, which installations
without a compiler have.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import thread_time

from decodeloop.engine.kernels.lookup import compiled_lookups
from decodeloop.speculation import Drafter, DrafterSetup, DraftRequest
from decodeloop.speculation.drafters import drafters
from decodeloop.speculation.drafters.shadow import shadow_match
from decodeloop.speculation.lookup import Lookups
from decodeloop.speculation.sampling import RequestChance, SamplingState
from decodeloop.types import SamplingParams

VOCAB_SIZE = 49_152
CONTEXTS = (1_000, 8_000, 100_000)
FED = 3_000  # tokens after the context
ROUND = 100  # tokens between changes of context, so that all see the same weather
DRAFT_LEN = 8
FLAT_WITHIN = 2.0


@dataclass(frozen=True, slots=True)
class Cost:
    """us_per_token: CPU time, median over rounds, a draft of DRAFT_LEN included.

    right_per_draft: leading drafted tokens that came true.
    """

    drafter: str
    context_tokens: int
    us_per_token: float
    us_per_token_indexed: float  # of the context, without drafts
    right_per_draft: float
    drafted_share: float
    bytes_per_token: float


class Feed:
    """One drafter after one context, with the time and the hits of what it is fed."""

    def __init__(self, name: str, text: Sequence[int], context: int, lookups: Lookups | None) -> None:
        self.name, self.context, self._text = name, context, text
        setup = DrafterSetup(VOCAB_SIZE, len(text), max_sequences=1, max_draft_len=DRAFT_LEN, lookups=lookups)
        self._drafter: Drafter = drafters.load(name)(setup)
        self._tokens = list(text[:context])
        state = SamplingState(SamplingParams(), [], vocab_size=VOCAB_SIZE, eos_ids=frozenset())
        self._request = DraftRequest(0, self._tokens, DRAFT_LEN, state, RequestChance.of(0, [], 0))
        self.drafts = self.right = 0
        self.indexed_s = self._timed_draft()[0]
        self.rounds_s: list[float] = []

    def _timed_draft(self) -> tuple[float, int]:
        started = thread_time()
        draft = self._drafter.propose([self._request]).drafts[0]
        elapsed = thread_time() - started
        place = len(self._tokens)
        self.drafts += bool(draft.tokens)
        return elapsed, shadow_match(draft, self._text[place : place + DRAFT_LEN])

    def round(self) -> None:
        spent = 0.0
        for _ in range(ROUND):
            self._tokens.append(self._text[len(self._tokens)])
            elapsed, right = self._timed_draft()
            spent += elapsed
            self.right += right
        self.rounds_s.append(spent)

    def cost(self) -> Cost:
        return Cost(
            drafter=self.name,
            context_tokens=self.context,
            us_per_token=1e6 * statistics.median(self.rounds_s) / ROUND,
            us_per_token_indexed=1e6 * self.indexed_s / self.context,
            right_per_draft=self.right / max(1, self.drafts),
            drafted_share=self.drafts / (ROUND * len(self.rounds_s)),
            bytes_per_token=sum(self._drafter.memory_bytes().values()) / len(self._tokens),
        )


def words(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        yield from re.findall(r"\w+|[^\w\s]|\s+", path.read_text(encoding="utf-8", errors="replace"))


def as_tokens(paths: Sequence[Path], count: int) -> list[int]:
    """The first `count` words as ids; a text shorter than that is refused."""
    ids: dict[str, int] = {}
    tokens = [ids.setdefault(word, len(ids)) % VOCAB_SIZE for word in itertools.islice(words(paths), count)]
    if len(tokens) < count:
        raise SystemExit(f"the text has {len(tokens)} tokens; {count} are needed")
    return tokens


def measure(text: Sequence[int], lookups: Lookups | None) -> list[Cost]:
    feeds = [Feed(name, text, context, lookups) for name in ("ngram", "suffix") for context in CONTEXTS]
    for _ in range(FED // ROUND):
        for feed in feeds:
            feed.round()
    return [feed.cost() for feed in feeds]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--text", nargs="*", type=Path, help="text files to read")
    parser.add_argument("--python", action="store_true", help="the look-ups written in Python")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    arguments = parser.parse_args()
    paths = arguments.text or sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    lookups = None if arguments.python else compiled_lookups()
    costs = measure(as_tokens(paths, max(CONTEXTS) + FED + DRAFT_LEN), lookups)
    base = {cost.drafter: cost.us_per_token for cost in costs if cost.context_tokens == CONTEXTS[0]}
    print("drafter   context  us/token  of 1k  indexing  drafts  right  B/token")
    for cost in costs:
        print(
            f"{cost.drafter:8} {cost.context_tokens:8d} {cost.us_per_token:9.1f}"
            f" {cost.us_per_token / base[cost.drafter]:6.2f} {cost.us_per_token_indexed:9.1f}"
            f" {cost.drafted_share:7.2f} {cost.right_per_draft:6.2f} {cost.bytes_per_token:8.0f}"
        )
    flat = all(cost.us_per_token <= FLAT_WITHIN * base[cost.drafter] for cost in costs)
    if arguments.json:
        print(json.dumps({"flat": flat, "costs": [asdict(cost) for cost in costs]}))
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
