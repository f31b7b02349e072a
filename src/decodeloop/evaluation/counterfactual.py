"""What a drafter would have proposed at every position of answers that are known, and how much of it was right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decodeloop.evaluation.acceptance import Draft, History
from decodeloop.evaluation.workload import Arrival
from decodeloop.speculation import Drafter, DraftRequest
from decodeloop.speculation.sampling import RequestChance, SamplingState
from decodeloop.types import RequestClass


@dataclass(frozen=True, slots=True)
class Text:
    """An answer as the target gave it. prompt, answer: token ids. state: of sampling, before the first token."""

    request_class: RequestClass
    prompt: Sequence[int]
    answer: Sequence[int]
    state: SamplingState

    @property
    def chance(self) -> RequestChance:
        """For a drafter that draws; those that copy ask for none."""
        return RequestChance.of(0, self.prompt, 0)

    def arrival(self, number: int) -> Arrival:
        return Arrival(0.0, len(self.prompt), len(self.answer), self.request_class, text=number)


def histories(drafter: Drafter, texts: Sequence[Text], *, draft_len: int) -> list[History]:
    """Of each text its draft at every position. The drafter meets them one after the other, each in an organization of
    its own, so that none is copied from another."""
    return [_history(drafter, number, text, draft_len) for number, text in enumerate(texts)]


def right(drafts: Sequence[History]) -> int:
    """Drafted tokens that were right, over all positions: what a drafter is worth to a clairvoyant."""
    return sum(draft.right for history in drafts for draft in history.drafts)


def _history(drafter: Drafter, number: int, text: Text, draft_len: int) -> History:
    drafts = []
    state = text.state.fork()
    for i in range(len(text.answer)):
        tokens = [*text.prompt, *text.answer[:i]]
        asked = DraftRequest(number, tokens, draft_len, state.fork(), text.chance, organization=f"{number}")
        draft = drafter.propose([asked]).drafts[0]
        pairs = zip(draft.tokens, text.answer[i:], strict=False)
        wrong = next((k for k, (said, true) in enumerate(pairs) if said != true), None)
        agreed = min(len(draft.tokens), len(text.answer) - i) if wrong is None else wrong
        drafts.append(Draft(len(draft.tokens), agreed, draft.confidence))
        state.advance(text.answer[i])
    drafter.finish(number, [*text.prompt, *text.answer], f"{number}")
    return History(text.request_class, drafts)
