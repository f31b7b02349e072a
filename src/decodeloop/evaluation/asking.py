"""Whom a simulated engine asks its free drafters for: by the engine's own attention, over simulated requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decodeloop.evaluation.fleet import Served
from decodeloop.policy.attention import Attention
from decodeloop.types import Decision, RequestClass, Speculation


@dataclass(frozen=True, slots=True)
class _Request:
    request_class: RequestClass
    speculation: Speculation = Speculation()


@dataclass(frozen=True, slots=True)
class _Running:
    """As much of a sequence as attention looks at."""

    id: int
    organization: str
    request: _Request


class Always:
    """Every sequence is asked in every step, as by hosts that know no rest."""

    def due(self, requests: Sequence[Served]) -> Sequence[int]:
        return range(len(requests))

    def heed(self, decision: Decision) -> None:
        """Nothing comes of it."""


class Asking:
    """What deciding takes isn't simulated, so asking is taken to cost what it is taken to cost before it's measured."""

    def __init__(self, organization: str) -> None:
        self._organization = organization
        self._attention = Attention()
        self._running: dict[int, _Running] = {}
        self._asked: Sequence[int] = ()

    def due(self, requests: Sequence[Served]) -> Sequence[int]:
        """The indices of those to ask in the step that begins."""
        running = {each.number: self._running.get(each.number) or self._opened(each) for each in requests}
        for number in self._running.keys() - running.keys():
            self._attention.finish(self._running[number])
        self._running = running
        self._asked = self._attention.due(list(running.values()))
        return self._asked

    def heed(self, decision: Decision) -> None:
        """What came of asking."""
        self._attention.heed(list(self._running.values()), self._asked, decision)

    def _opened(self, request: Served) -> _Running:
        return _Running(request.number, self._organization, _Request(request.arrival.request_class))
