"""The measurement log: one Redis stream, written before a measurement is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import redis.asyncio
from redis.exceptions import RedisError

from tlp_service.errors import NotReady

# The braces put all keys into one slot of a Redis cluster.
STREAM = "{tlp}:measurements"
SEEN = "{tlp}:measurement:"
#: What the recorder tells of prediction error, as JSON.
QUALITY = "{tlp}:quality"

# One script, so that a record and its id are written both or not at all: should XADD fail, the id is given back.
# ARGV: seconds an id is remembered, then the entries as MessagePack: one argument, where thousands would take longer to send than to
# write. Returns the positions of the entries whose id was there already; they are few.
_APPEND = """
local known = {}
for i, entry in ipairs(cmsgpack.unpack(ARGV[2])) do
  local seen = KEYS[2] .. entry[1]
  if redis.call('SET', seen, 1, 'EX', ARGV[1], 'NX') then
    local added = redis.pcall('XADD', KEYS[1], '*', 'id', entry[1], 'record', entry[2], 'worker', entry[3],
                              'platform', entry[4], 'version', entry[5])
    if type(added) == 'table' and added.err then
      redis.call('DEL', seen)
      return added
    end
  else
    known[#known + 1] = i - 1
  end
end
return known
"""

#: Entries of one call. Nothing else is done by the server meanwhile.
_RECORDS_A_CALL = 1000


#: Seconds: a health check or a scrape that waits longer fails for its caller.
_CHECK_TIMEOUT_S = 2.0


class Entry(NamedTuple):
    """One entry of the stream, all of text.

    Parameters
    ----------
    id : str
        Made by the client; kept once.
    record : str
        The record's line.
    worker, platform : str
        Who measured, and on what.
    version : str
        Model version that the worker's search used; empty if it did not say.
    """

    id: str
    record: str
    worker: str
    platform: str
    version: str


class MeasurementStream:
    """Appends measurements to the stream, each id once.

    Parameters
    ----------
    url : str
        Of a Redis or Valkey.
    id_days : int
        Days for which an id is remembered. A client that resends later than that is counted twice.
    """

    def __init__(self, url: str, id_days: int = 7) -> None:
        self._pool = redis.asyncio.BlockingConnectionPool.from_url(
            url,
            decode_responses=True,
            encoding_errors="replace",
            max_connections=16,
            timeout=5,
            socket_timeout=10,
            socket_connect_timeout=5,
        )
        self._client = redis.asyncio.Redis(connection_pool=self._pool)
        self._append = self._client.register_script(_APPEND)
        self._id_seconds = id_days * 86400

    async def append(self, entries: Sequence[Entry]) -> list[int]:
        """Append the entries whose id is new and return the positions of those.

        Raises
        ------
        NotReady
            If the stream cannot be written. Nothing, or the first part, may have been: the same request can
            be sent again.
        """
        added: list[int] = []
        try:
            for start in range(0, len(entries), _RECORDS_A_CALL):
                part = entries[start : start + _RECORDS_A_CALL]
                packed = msgspec.msgpack.encode(part)
                known = set(await self._append(keys=[STREAM, SEEN], args=[self._id_seconds, packed]))
                added += [start + position for position in range(len(part)) if position not in known]
        except (RedisError, OSError) as error:
            raise NotReady(f"the measurement stream cannot be written: {error}", retry_after=2) from None
        return added

    async def check(self) -> int:
        """Return the length of the stream.

        Raises
        ------
        NotReady
            If it cannot be reached.
        """
        try:
            return int(await asyncio.wait_for(self._client.xlen(STREAM), _CHECK_TIMEOUT_S))
        except (RedisError, OSError, asyncio.TimeoutError) as error:
            raise NotReady(f"the measurement stream cannot be reached: {error}", retry_after=2) from None

    async def quality(self) -> bytes | None:
        """Return what the recorder last told of prediction error, or None where none has told anything lately.

        Raises
        ------
        NotReady
            If the server cannot be reached.
        """
        try:
            told = await asyncio.wait_for(self._client.get(QUALITY), _CHECK_TIMEOUT_S)
        except (RedisError, OSError, asyncio.TimeoutError) as error:
            raise NotReady(f"the measurement stream cannot be reached: {error}", retry_after=2) from None
        return None if told is None else str(told).encode(errors="replace")

    async def weakness(self) -> str | None:
        """Return why an acknowledged measurement could be lost with the Redis server, or None."""
        try:
            settings = await self._client.config_get("append*")
        except (RedisError, OSError) as error:
            return f"its settings cannot be read ({error})"
        if settings.get("appendonly") != "yes" or settings.get("appendfsync") != "always":
            return "it does not run with 'appendonly yes' and 'appendfsync always'"
        return None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
        await self._pool.disconnect()  # which the client leaves to who made the pool
