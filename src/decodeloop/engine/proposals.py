"""Asks the drafters: the free ones before there is a plan, then those that the plan plays.

What a free drafter proposes as a point mass is a function of the context, so a plan may know it (ALGORITHMS 1); it is
scored against the text whether it is played or not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from decodeloop.engine.sequence import Sequence as EngineSequence
from decodeloop.speculation import NO_DRAFT, Draft, DraftBlock, Drafter, DraftRequest
from decodeloop.types import Plan, RequestClass, SpeculationMode

log = logging.getLogger(__name__)


REST_AFTER = 8  # steps of a sequence in which nothing that was said was worth verifying
REST_STEPS = 6  # then its drafters are asked every so many steps only
HOPELESS = 0.04  # of its class's steps with something worth verifying: a new sequence begins at rest
HEEDED_KEPT = 1.0 - 1.0 / 256.0  # of a class's share of such steps, a step of one sequence
MAX_CLASSES = 1024


@dataclass(frozen=True, slots=True)
class Spoken:
    """Per sequence, before there is a plan. drafts: free drafter -> its draft, NO_DRAFT for nothing.

    proposals: what a plan may know of them: the confidence of those that are point masses. A draft that was sampled is
    no function of the context: choosing by it would change the target's law.
    """

    drafts: tuple[dict[str, Draft], ...]
    proposals: tuple[Mapping[str, tuple[float, ...]], ...]


@dataclass(frozen=True, slots=True)
class Proposals:
    """block: what is played, per sequence. shadows: what each free drafter said, played or not."""

    block: DraftBlock
    shadows: tuple[Mapping[str, Draft], ...] = ()


class Proposers:
    """The engine's drafters. One that raises is set aside with a warning; its sequences decode plainly."""

    def __init__(self, drafters: Mapping[str, Drafter], *, shadow_len: int, shares_noise: bool) -> None:
        self._drafters = dict(drafters)
        self._shadow_len, self._shares_noise = shadow_len, shares_noise
        self.failed: dict[str, str] = {}
        self._round = 0
        self._unheeded: dict[int, int] = {}  # by sequence: steps since something was verified
        self._heeded: dict[tuple[str, RequestClass], float] = {}  # share of steps, discounted

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._drafters)

    def speak(self, sequences: Sequence[EngineSequence]) -> Spoken:
        """What the free drafters would say, before there is a plan.

        Nobody speaks where shadow_len is 0, for a sequence that wants no speculation, or for one that rests.
        """
        drafts: tuple[dict[str, Draft], ...] = tuple({} for _ in sequences)
        if not self._shadow_len:
            return Spoken(drafts, tuple({} for _ in sequences))
        self._round += 1
        free = {name: drafter for name, drafter in self._drafters.items() if drafter.free}
        wanting = [i for i, s in enumerate(sequences) if s.request.speculation.mode is not SpeculationMode.OFF]
        asking = [i for i in wanting if not self._rests(sequences[i])]
        requests = [self._request(sequences[i], self._shadow_len) for i in asking]
        for name, drafter in free.items():
            said = self._ask(name, drafter, requests) if requests else ()
            if name not in self.failed:
                for i, draft in zip(asking, said, strict=True):
                    drafts[i][name] = draft
        proposals: list[Mapping[str, tuple[float, ...]]] = [_confidences(said) for said in drafts]
        for i in set(wanting).difference(asking):
            proposals[i] = dict.fromkeys(free, ())
        return Spoken(drafts, tuple(proposals))

    def heed(self, sequences: Sequence[EngineSequence], verify_lens: Sequence[int]) -> None:
        """What was verified in the end: drafters with nothing to verify for a while rest."""
        if not self._shadow_len:
            return
        for sequence, verify_len in zip(sequences, verify_lens, strict=True):
            self._unheeded[sequence.id] = 0 if verify_len else self._waited(sequence) + 1
            own = _class_of(sequence)
            if own not in self._heeded and len(self._heeded) >= MAX_CLASSES:
                del self._heeded[next(iter(self._heeded))]
            heeded = float(verify_len > 0)
            self._heeded[own] = heeded + HEEDED_KEPT * (self._heeded.get(own, 1.0) - heeded)

    def _waited(self, sequence: EngineSequence) -> int:
        """Steps since something of this sequence was verified; one of a hopeless class is taken to have waited."""
        known = self._unheeded.get(sequence.id)
        if known is None:
            return REST_AFTER if self._heeded.get(_class_of(sequence), 1.0) < HOPELESS else 0
        return known

    def _rests(self, sequence: EngineSequence) -> bool:
        return self._waited(sequence) >= REST_AFTER and (self._round + sequence.id) % REST_STEPS != 0

    def propose(self, plan: Plan, sequences: Sequence[EngineSequence], spoken: Spoken) -> Proposals:
        """spoken: what was said before the plan, which is not asked again."""
        drafts = [NO_DRAFT] * len(sequences)
        wanted: dict[str, list[int]] = {}
        for i, (name, draft_len) in enumerate(zip(plan.drafters, plan.draft_lens, strict=True)):
            if name is None or not draft_len:
                continue
            if name in spoken.drafts[i] and draft_len <= self._shadow_len:
                drafts[i] = spoken.drafts[i][name].cut(draft_len)
            else:
                wanted.setdefault(name, []).append(i)
        for name in [name for name in self._drafters if name in wanted]:
            requests = [self._request(sequences[i], plan.draft_lens[i]) for i in wanted[name]]
            for i, draft in zip(wanted[name], self._ask(name, self._drafters[name], requests), strict=True):
                drafts[i] = draft.cut(plan.draft_lens[i])
        return Proposals(DraftBlock(tuple(drafts)), spoken.drafts)

    def finish(self, sequence: EngineSequence) -> None:
        self._unheeded.pop(sequence.id, None)
        for name, drafter in list(self._drafters.items()):
            try:
                drafter.finish(sequence.id, sequence.tokens, sequence.organization)
            except Exception as error:
                self._set_aside(name, error)

    def memory_bytes(self) -> Mapping[str, Mapping[str, int]]:
        return {name: drafter.memory_bytes() for name, drafter in self._drafters.items()}

    def _request(self, sequence: EngineSequence, draft_len: int) -> DraftRequest:
        return DraftRequest(
            sequence.id,
            sequence.tokens,
            draft_len,
            sequence.state,
            sequence.chance,
            sequence.organization,
            self._shares_noise,
        )

    def _ask(self, name: str, drafter: Drafter, requests: list[DraftRequest]) -> tuple[Draft, ...]:
        try:
            drafts = drafter.propose(requests).drafts
            if len(drafts) != len(requests):
                raise ValueError(f"{len(drafts)} drafts for {len(requests)} requests")
            return tuple(draft.chain() for draft in drafts)
        except Exception as error:
            self._set_aside(name, error)
            return (NO_DRAFT,) * len(requests)

    def _set_aside(self, name: str, error: Exception) -> None:
        log.warning("drafter %s failed and is set aside: %r", name, error, exc_info=error)
        self.failed[name] = repr(error)
        del self._drafters[name]


def _class_of(sequence: EngineSequence) -> tuple[str, RequestClass]:
    return sequence.organization, sequence.request.request_class


def _confidences(said: Mapping[str, Draft]) -> dict[str, tuple[float, ...]]:
    return {name: draft.confidence or (1.0,) * len(draft.tokens) for name, draft in said.items() if draft.q is None}
