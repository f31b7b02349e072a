"""Asks the drafters: the free ones before there is a plan, then those that the plan plays.

What a free drafter proposes as a point mass is a function of the context, so a plan may know it (ALGORITHMS 1); it is
scored against the text whether it is played or not.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from decodeloop.engine.sequence import Sequence as EngineSequence
from decodeloop.policy.attention import Attention, wants_none
from decodeloop.speculation import NO_DRAFT, Draft, DraftBlock, Drafter, DraftRequest
from decodeloop.types import Decision, Plan

log = logging.getLogger(__name__)

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Spoken:
    """Per sequence, before there is a plan. drafts: free drafter -> its draft, NO_DRAFT for nothing.

    proposals: what a plan may know of them: the confidence of those that are point masses. A draft that was sampled is
    no function of the context: choosing by it would change the target's law. asked: the sequences' indices.
    """

    drafts: tuple[Mapping[str, Draft], ...]
    proposals: tuple[Mapping[str, tuple[float, ...]], ...]
    asked: Sequence[int] = ()

    def without(self, held: Collection[int]) -> Spoken:
        """The other sequences'. Those that are held are asked again when their turn comes."""
        kept = [i for i in range(len(self.drafts)) if i not in held]
        asked = [place for place, i in enumerate(kept) if i in self.asked]
        return Spoken(tuple(self.drafts[i] for i in kept), tuple(self.proposals[i] for i in kept), asked)


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
        self._attention = Attention()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._drafters)

    def speak(self, sequences: Sequence[EngineSequence]) -> Spoken:
        """What the free drafters would say, before there is a plan.

        Nobody speaks where shadow_len is 0, for a sequence that wants no speculation, or for one that rests.
        """
        if not self._shadow_len:
            return Spoken((NOTHING,) * len(sequences), (NOTHING,) * len(sequences))
        asked = self._attention.due(sequences)
        silence: Mapping[str, tuple[float, ...]] = {name: () for name, each in self._drafters.items() if each.free}
        if not asked:
            return Spoken((NOTHING,) * len(sequences), (silence,) * len(sequences))
        requests = [self._request(sequences[i], self._shadow_len) for i in asked]
        said: list[dict[str, Draft]] = [{} for _ in asked]
        for name in silence:
            for own, draft in zip(said, self._ask(name, self._drafters[name], requests), strict=True):
                if name not in self.failed:
                    own[name] = draft
        drafts: list[Mapping[str, Draft]] = [NOTHING] * len(sequences)
        proposals = [NOTHING if wants_none(sequence) else silence for sequence in sequences]
        for i, own in zip(asked, said, strict=True):
            drafts[i], proposals[i] = own, _confidences(own)
        return Spoken(tuple(drafts), tuple(proposals), asked)

    def heed(self, spoken: Spoken, sequences: Sequence[EngineSequence], decision: Decision) -> None:
        """What was verified in the end of those that were asked: drafters with nothing to verify for a while rest."""
        if spoken.asked:
            self._attention.heed(sequences, spoken.asked, decision)

    def took(self, spoken: Spoken, decision: Decision, ms: float) -> None:
        """Drafting and overhead of a step without prompts."""
        if self._shadow_len and not any(decision.verify_lens):
            self._attention.took(len(spoken.asked), ms)

    def propose(self, plan: Plan, sequences: Sequence[EngineSequence], spoken: Spoken) -> Proposals:
        """spoken: what was said before the plan, which is not asked again."""
        drafts = [NO_DRAFT] * len(sequences)
        if not any(plan.draft_lens):
            return Proposals(DraftBlock(tuple(drafts)), spoken.drafts)
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
        self._attention.finish(sequence)
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


def _confidences(said: Mapping[str, Draft]) -> dict[str, tuple[float, ...]]:
    return {name: draft.confidence or (1.0,) * len(draft.tokens) for name, draft in said.items() if draft.q is None}
