"""Work and its watchers, in every order in which they can end."""

from __future__ import annotations

import asyncio

import pytest

from decodeloop.gateway.tasks import watched


class Alarm(Exception):
    pass


async def after(turns: int, raised: BaseException | None = None, log: list[str] | None = None) -> None:
    try:
        for _ in range(turns):
            await asyncio.sleep(0)
        if raised is not None:
            raise raised
    except asyncio.CancelledError:
        if log is not None:
            log.append("cancelled")
        raise


@pytest.mark.parametrize("watcher_turns", range(8))
@pytest.mark.parametrize("work_turns", range(8))
def test_whichever_ends_first_wins_and_nothing_is_left(work_turns, watcher_turns):
    """An alarm at the very moment when the work ends is either told or not, and cancels nothing that comes after."""

    async def run() -> None:
        log: list[str] = []
        try:
            await watched(after(work_turns, log=log), after(watcher_turns, Alarm()), after(10**6))
            assert watcher_turns >= work_turns - 1
            assert log == []
        except Alarm:
            assert watcher_turns <= work_turns
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    asyncio.run(run())


def test_a_watcher_that_just_ends_changes_nothing():
    asyncio.run(watched(after(5), after(1)))


def test_the_works_own_error_is_raised():
    with pytest.raises(ValueError, match="own"):
        asyncio.run(watched(after(2, ValueError("own")), after(10)))


@pytest.mark.parametrize("turns", range(5))
def test_a_cancellation_from_outside_is_one(turns):
    async def run() -> None:
        task = asyncio.create_task(watched(after(10**6), after(turns, Alarm()), after(10**6)))
        for _ in range(turns + 1):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task])
        assert done.pop().cancelled() or isinstance(task.exception(), Alarm)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
