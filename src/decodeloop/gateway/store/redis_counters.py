"""Shared counters in Redis: one script a reservation, so that any number of gateways hold one budget together.

Redis is a copy: the truth is the database's. A `generation` says which copy this is; when Redis was restarted (it has
another run id than the one the copy was made for) the generation is removed before anything else is asked, and every
script answers that the copy must be made anew. One Redis, not a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from decodeloop.gateway.store import StoreUnavailable
from decodeloop.governance.quota import Hold

__all__ = ["Rebuilding", "RedisCounters"]

TIMEOUT_S = 5.0

_HEAD = """
local gen = redis.call('GET', 'dl:gen')
if not gen then return {'rebuilding'} end
"""

_HELD = """
local function total(counter, oldest)
  local flat, sum = redis.call('HGETALL', 'dl:c:' .. counter), 0
  for j = 1, #flat, 2 do
    if tonumber(flat[j]) >= oldest then sum = sum + tonumber(flat[j + 1]) end
  end
  return sum
end
local function add(counter, slice, amount, until_s)
  if amount == 0 then return end
  local key = 'dl:c:' .. counter
  redis.call('HINCRBY', key, slice, string.format('%.0f', amount))
  if until_s > 0 then redis.call('EXPIREAT', key, string.format('%.0f', until_s + 3600)) end
end
"""

# id, instance, then six of each hold: counter, slice, oldest, cap, amount, until_s.
_RESERVE = (
    _HEAD
    + _HELD
    + """
local held = redis.call('GET', 'dl:r:' .. ARGV[1])
local old = held and cjson.decode(held)[2] or {}
local answer, place = {gen, -1}, -1
for b = 3, #ARGV, 6 do
  local k = (b - 3) / 6 + 1
  local more = tonumber(ARGV[b + 4]) - tonumber(old[k] or 0)
  local sum = total(ARGV[b], tonumber(ARGV[b + 2]))
  answer[#answer + 1] = string.format('%.0f', sum)
  if place < 0 and more > 0 and sum + more > tonumber(ARGV[b + 3]) then place = k - 1 end
end
answer[2] = place
if place >= 0 then return answer end
local names, amounts = {}, {}
for b = 3, #ARGV, 6 do
  local k = (b - 3) / 6 + 1
  add(ARGV[b], ARGV[b + 1], tonumber(ARGV[b + 4]) - tonumber(old[k] or 0), tonumber(ARGV[b + 5]))
  names[k], amounts[k] = {ARGV[b], ARGV[b + 1], ARGV[b + 5]}, ARGV[b + 4]
end
redis.call('SET', 'dl:r:' .. ARGV[1], cjson.encode({names, amounts, ARGV[2]}))
redis.call('SADD', 'dl:o:' .. ARGV[2], ARGV[1])
return answer
"""
)

# id, a holder ("": whoever), then what each hold was charged; none: everything is released. What isn't held was settled
# before.
_SETTLE = (
    _HEAD
    + _HELD
    + """
local held = redis.call('GET', 'dl:r:' .. ARGV[1])
if not held then return {gen} end
local told = cjson.decode(held)
if ARGV[2] ~= '' and told[3] ~= ARGV[2] then return {gen} end
for k, name in ipairs(told[1]) do
  add(name[1], name[2], tonumber(ARGV[k + 2] or 0) - tonumber(told[2][k]), tonumber(name[3]))
end
redis.call('DEL', 'dl:r:' .. ARGV[1])
redis.call('SREM', 'dl:o:' .. told[3], ARGV[1])
return {gen}
"""
)

# generation, then four of each: counter, slice, amount, until_s. Another copy has it in it already.
_ADJUST = (
    _HEAD
    + _HELD
    + """
if gen ~= ARGV[1] then return {gen} end
for b = 2, #ARGV, 4 do add(ARGV[b], ARGV[b + 1], tonumber(ARGV[b + 2]), tonumber(ARGV[b + 3])) end
return {gen}
"""
)

_USED = (
    _HEAD
    + _HELD
    + """
local answer = {gen}
for b = 1, #ARGV, 2 do answer[#answer + 1] = string.format('%.0f', total(ARGV[b], tonumber(ARGV[b + 1]))) end
return answer
"""
)

_FORGET_OF_ANOTHER_RUN = """
if redis.call('GET', 'dl:run') ~= ARGV[1] then redis.call('DEL', 'dl:gen') end
"""


class Rebuilding(Exception):
    """The counters must be, or are being, copied anew."""


class RedisCounters:
    """url: redis://... Raises StoreUnavailable from every method where Redis can't be asked, Rebuilding where it has
    no copy."""

    def __init__(self, url: str) -> None:
        try:
            from redis.asyncio import BlockingConnectionPool, Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError:
            raise ImportError("counters need the package redis: pip install 'decodeloop[stores]'") from None

        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=16,
            timeout=TIMEOUT_S,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            decode_responses=True,
            redis_connect_func=_connected,
            retry=Retry(NoBackoff(), 0),  # asking again is decided by whoever knows whether that is harmless
        )
        self._redis = Redis(connection_pool=pool)
        self._scripts = {
            name: self._redis.register_script(text)
            for name, text in (("reserve", _RESERVE), ("settle", _SETTLE), ("adjust", _ADJUST), ("used", _USED))
        }

    async def close(self) -> None:
        await self._redis.aclose(close_connection_pool=True)

    async def reserve(self, id: str, instance: str, holds: Sequence[Hold]) -> tuple[str, int, tuple[int, ...]]:
        """Hold all, or none. The generation, the place of the first that didn't fit (-1: all did), and what each
        counter held before. Of an id that is held already the holds are replaced, if the differences fit."""
        told: list[Any] = [id, instance]
        for hold in holds:
            told += [hold.counter, hold.slice, hold.oldest, hold.cap, hold.amount, hold.until_s]
        generation, place, *used = await self._run("reserve", told)
        return generation, int(place), tuple(map(int, used))

    async def settle(self, id: str, amounts: Sequence[int], holder: str = "") -> None:
        """Replace what `id` holds by what it was charged. Again does nothing. holder: only if it is held by that
        instance."""
        await self._run("settle", [id, holder, *amounts])

    async def adjust(self, generation: str, differences: Iterable[Hold]) -> None:
        """Add, in the copy that doesn't know of it."""
        told: list[Any] = [generation]
        for hold in differences:
            told += [hold.counter, hold.slice, hold.amount, hold.until_s]
        await self._run("adjust", told)

    async def used(self, counters: Sequence[tuple[str, int]]) -> tuple[int, ...]:
        _, *used = await self._run("used", [part for pair in counters for part in pair])
        return tuple(map(int, used))

    async def held_by(self, instance: str) -> list[str]:
        return sorted(await self._try(self._redis.smembers(f"dl:o:{instance}")))

    async def generation(self) -> str | None:
        """Of the copy that it has."""
        got = await self._try(self._redis.get("dl:gen"))
        return None if got is None else str(got)

    async def stop(self) -> None:
        """From here on every script answers that there is no copy."""
        await self._try(self._redis.delete("dl:gen"))

    async def load(
        self,
        generation: str,
        settled: Mapping[tuple[str, int], tuple[int, float]],
        open_: Sequence[tuple[str, str, Sequence[Hold]]],
    ) -> None:
        """Make the copy: charges by (counter, slice), with until_s; open reservations as (id, instance, holds)."""
        await self.stop()
        run = str((await self._try(self._redis.info("server")))["run_id"])
        stale = [key async for key in self._redis.scan_iter("dl:[cro]:*", count=1000)]
        pipeline = self._redis.pipeline(transaction=True)
        if stale:
            pipeline.delete(*stale)
        for (counter, place), (used, until_s) in settled.items():
            _add(pipeline, counter, place, used, until_s)
        for id, instance, holds in open_:
            for hold in holds:
                _add(pipeline, hold.counter, hold.slice, hold.amount, hold.until_s)
            names = [[hold.counter, str(hold.slice), str(hold.until_s)] for hold in holds]
            pipeline.set(f"dl:r:{id}", json.dumps([names, [str(hold.amount) for hold in holds], instance]))
            pipeline.sadd(f"dl:o:{instance}", id)
        pipeline.set("dl:run", run)
        pipeline.set("dl:gen", generation)
        await self._try(pipeline.execute())

    async def _run(self, name: str, told: Sequence[Any]) -> list[Any]:
        answer: list[Any] = await self._try(self._scripts[name](args=list(told)))
        if answer[0] == "rebuilding":
            raise Rebuilding
        return answer

    async def _try(self, asked: Any) -> Any:
        from redis.exceptions import RedisError

        try:
            return await asked
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailable(f"Redis: {error}") from None


async def _connected(connection: Any) -> None:
    """Before anything is asked on a new connection: is this still the Redis that the copy was made for?"""
    await connection.on_connect()
    await connection.send_command("INFO", "server")
    told = await connection.read_response()
    text = told if isinstance(told, str) else told.decode()
    run = next(line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("run_id:"))
    await connection.send_command("EVAL", _FORGET_OF_ANOTHER_RUN, 0, run)
    await connection.read_response()


def _add(pipeline: Any, counter: str, place: int, amount: int, until_s: float) -> None:
    if amount:
        pipeline.hincrby(f"dl:c:{counter}", place, amount)
        if until_s > 0:
            pipeline.expireat(f"dl:c:{counter}", int(until_s) + 3600)
