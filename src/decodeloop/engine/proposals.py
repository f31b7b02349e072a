"""Asks the drafters: those that the plan plays, and the free ones for their shadow score."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from decodeloop.engine.sequence import Sequence as EngineSequence
from decodeloop.speculation import NO_DRAFT, Draft, DraftBlock, Drafter, DraftRequest
from decodeloop.types import Plan, SpeculationMode

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Proposals:
    """block: what is played, per sequence. shadows: what each free drafter would have said, per sequence."""

    block: DraftBlock
    shadows: tuple[Mapping[str, Draft], ...] = field(default=())


class Proposers:
    """The engine's drafters. One that raises is set aside with a warning; its sequences decode plainly."""

    def __init__(self, drafters: Mapping[str, Drafter], *, shadow_len: int, shares_noise: bool) -> None:
        self._drafters = dict(drafters)
        self._shadow_len, self._shares_noise = shadow_len, shares_noise
        self.failed: dict[str, str] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._drafters)

    def propose(self, plan: Plan, sequences: Sequence[EngineSequence]) -> Proposals:
        drafts = [NO_DRAFT] * len(sequences)
        shadows: list[dict[str, Draft]] = [{} for _ in sequences]
        for name, drafter in list(self._drafters.items()):
            wanted = self._wanted(name, drafter, plan, sequences)
            if not wanted:
                continue
            asked = [self._request(sequences[i], draft_len) for i, draft_len in wanted.items()]
            for i, draft in zip(wanted, self._ask(name, drafter, asked), strict=True):
                if plan.drafters[i] == name:
                    drafts[i] = draft.cut(plan.draft_lens[i])
                if drafter.free and self._shadow_len:
                    shadows[i][name] = draft
        return Proposals(DraftBlock(tuple(drafts)), tuple(shadows))

    def finish(self, sequence: EngineSequence) -> None:
        for name, drafter in list(self._drafters.items()):
            try:
                drafter.finish(sequence.id, sequence.tokens, sequence.organization)
            except Exception as error:
                self._set_aside(name, error)

    def memory_bytes(self) -> Mapping[str, Mapping[str, int]]:
        return {name: drafter.memory_bytes() for name, drafter in self._drafters.items()}

    def _wanted(self, name: str, drafter: Drafter, plan: Plan, sequences: Sequence[EngineSequence]) -> dict[int, int]:
        """Sequence index -> draft_len to ask of this drafter."""
        wanted = {}
        for i, sequence in enumerate(sequences):
            played = plan.draft_lens[i] if plan.drafters[i] == name else 0
            off = sequence.request.speculation.mode is SpeculationMode.OFF
            shadow = self._shadow_len if drafter.free and not off else 0
            if played or shadow:
                wanted[i] = max(played, shadow)
        return wanted

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
