"""Load on a target: so many requests at once (closed loop), or arriving by a clock of their own (open loop).

Every turn has its ramps. A closed loop is brought to its level by requests that aren't measured and kept there by
others until the last measured one has ended; these are then cut off. An open loop leaves out its first seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from decodeloop.evaluation.client.answer import Answer, CutOff
from decodeloop.evaluation.client.http import clock
from decodeloop.evaluation.client.target import Target, growth
from decodeloop.evaluation.plan import TurnKey
from decodeloop.evaluation.results import RequestResult, Turn
from decodeloop.evaluation.workloads.workload import WorkRequest

Tell = Callable[[RequestResult], None]
CUT_OFF = "cut off when the turn was over"


def silent(_: RequestResult) -> None:
    pass


@dataclass(slots=True)
class _Turn:
    """One turn under way: what has been answered, on a clock that starts with it."""

    target: Target
    key: TurnKey
    tell: Tell
    keep_text: bool
    start_s: float
    done: list[RequestResult]

    async def ask(self, request: WorkRequest, due_s: float, *, ramp: bool) -> None:
        try:
            self._record(request, await self.target.serve(request), due_s, ramp)
        except CutOff as cut:
            self._record(request, replace(cut.answer, error=CUT_OFF), due_s, ramp)
            raise

    def _record(self, request: WorkRequest, answer: Answer, due_s: float, ramp: bool) -> None:
        level, block, turn, arm = self.key
        result = RequestResult(
            arm=arm,
            level=level,
            block=block,
            turn=turn,
            id=request.id,
            request_class=request.request_class,
            weight=request.weight,
            session=request.session,
            due_s=due_s,
            sent_s=answer.sent_s - self.start_s,
            ended_s=answer.ended_s - self.start_s,
            chunk_s=tuple(at_s - self.start_s for at_s in answer.chunk_s),
            chunk_tokens=answer.chunk_tokens,
            exact_chunks=answer.exact_chunks,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            completion_tokens=answer.completion_tokens,
            drafting=answer.drafting,
            drafter=answer.drafter,
            times=answer.times,
            seed=answer.seed,
            finish_reason=answer.finish_reason,
            error=answer.error,
            ramp=ramp,
            text_hash=answer.text_hash,
            loops=answer.loops if answer.text else None,
            text=answer.text if self.keep_text else None,
        )
        self.done.append(result)
        self.tell(result)


async def closed_turn(
    target: Target,
    key: TurnKey,
    requests: Sequence[WorkRequest],
    fillers: Iterator[WorkRequest],
    *,
    tell: Tell = silent,
    keep_text: bool = False,
) -> tuple[Turn, list[RequestResult]]:
    """`requests` measured while key's level of requests is running. fillers: without end, for the ramps."""
    at_once = int(key[0])
    turn = await _begin(target, key, tell, keep_text)
    before = await target.counters()
    waiting = iter(requests)
    left = len(requests)
    over = asyncio.Event()

    async def place(number: int) -> None:
        nonlocal left
        if at_once > 1:  # answers of several lengths, so that the places don't stay in step
            await turn.ask(_shortened(next(fillers), (number + 1) / at_once), turn_s(turn), ramp=True)
        for request in waiting:
            await turn.ask(request, turn_s(turn), ramp=False)
            left -= 1
            if not left:
                over.set()
        while not over.is_set():
            await turn.ask(next(fillers), turn_s(turn), ramp=True)

    if not left:
        raise ValueError("a turn of no requests measures nothing")
    turn.start_s = clock()
    began_at = _now()
    places = [asyncio.create_task(place(number)) for number in range(at_once)]
    finished = asyncio.create_task(over.wait(), name="over")
    try:
        await asyncio.wait([*places, finished], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*places, finished):
            task.cancel()
        await asyncio.gather(*places, finished, return_exceptions=True)
    for task in places:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
    counters = growth(before, await target.counters())
    measured = [result for result in turn.done if not result.ramp]
    window = min(r.sent_s for r in measured), max(r.ended_s for r in measured)
    return _summary(turn, window, began_at, counters), turn.done


async def open_turn(
    target: Target,
    key: TurnKey,
    requests: Sequence[WorkRequest],
    arrivals_s: Sequence[float],
    *,
    ramp_s: float = 0.0,
    tell: Tell = silent,
    keep_text: bool = False,
) -> tuple[Turn, list[RequestResult]]:
    """`requests[i]` sent at `arrivals_s[i]`, whatever became of the others. Those due before ramp_s aren't measured."""
    if not requests or len(requests) != len(arrivals_s):
        raise ValueError(f"{len(requests)} requests and {len(arrivals_s)} arrivals")
    if not ramp_s < arrivals_s[-1]:
        raise ValueError(f"a ramp of {ramp_s:g} s leaves nothing of {arrivals_s[-1]:g} s of arrivals")
    turn = await _begin(target, key, tell, keep_text)
    before = await target.counters()
    turn.start_s = clock()
    began_at = _now()

    async def send(request: WorkRequest, due_s: float) -> None:
        await asyncio.sleep(turn.start_s + due_s - clock())
        await turn.ask(request, due_s, ramp=due_s < ramp_s)

    async with asyncio.TaskGroup() as group:
        for request, due_s in zip(requests, arrivals_s, strict=True):
            group.create_task(send(request, due_s))
    counters = growth(before, await target.counters())
    return _summary(turn, (ramp_s, arrivals_s[-1]), began_at, counters), turn.done


async def _begin(target: Target, key: TurnKey, tell: Tell, keep_text: bool) -> _Turn:
    await target.reset()
    return _Turn(target, key, tell, keep_text, clock(), [])


def turn_s(turn: _Turn) -> float:
    return clock() - turn.start_s


def _shortened(request: WorkRequest, share: float) -> WorkRequest:
    longest = int(request.params.get("max_tokens") or request.params.get("max_completion_tokens") or 64)
    params = {name: value for name, value in request.params.items() if name != "max_completion_tokens"}
    return replace(request, params={**params, "max_tokens": max(1, round(longest * share))})


def _summary(turn: _Turn, window: tuple[float, float], began_at: str, counters: dict[str, float]) -> Turn:
    """tokens and concurrency are of the window, whosever they are."""
    start, end = window
    seconds = end - start
    tokens = sum(
        size
        for result in turn.done
        for at_s, size in zip(result.chunk_s, result.chunk_tokens, strict=True)
        if start <= at_s <= end
    )
    busy = sum(max(0.0, min(result.ended_s, end) - max(result.sent_s, start)) for result in turn.done)
    level, block, place, arm = turn.key
    return Turn(
        arm=arm,
        level=level,
        block=block,
        turn=place,
        began_at=began_at,
        seconds=seconds,
        tokens=tokens,
        requests=len(turn.done),
        errors=sum(1 for result in turn.done if result.error is not None and result.error != CUT_OFF),
        concurrency=busy / seconds if seconds > 0.0 else 0.0,
        counters=counters,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
