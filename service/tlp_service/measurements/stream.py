"""The measurement log: one Redis stream, written before a measurement is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple

import msgspec
from redis.exceptions import RedisError, ResponseError

from tlp_service.errors import NotReady
from tlp_service.measurements.faults import cause_of
from tlp_service.measurements.guarantee import weaknesses
from tlp_service.measurements.write_probe import LIMIT_S, WriteProbe
from tlp_service.redis_url import connect_asyncio

# The braces put all keys into one slot of a Redis cluster.
STREAM = "{tlp}:measurements"
SEEN = "{tlp}:measurement:"
#: Key that the write probe writes and deletes in one script.
PROBE = "{tlp}:probe"
#: The recorder's consumer group.
GROUP = "store"
#: Key of the recorder's report of prediction error, as JSON.
QUALITY = "{tlp}:quality"

# One script, so that a record and its id are written both or not at all: should XADD fail, the id is given back.
# The script creates the recorder's consumer group together with a new stream.
# A server that is out of memory would refuse to create the group later, and could never be drained.
# ARGV: time to live of an id in seconds; the entries as MessagePack, since thousands of arguments would take longer
# to send than to write; the group. Returns the positions of entries with a known id, which are few.
_APPEND = """
local known = {}
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[3], '0', 'MKSTREAM')
end
for i, entry in ipairs(cmsgpack.unpack(ARGV[2])) do
  local seen = KEYS[2] .. entry[1]
  if redis.call('SET', seen, 1, 'EX', ARGV[1], 'NX') then
    local fields = {'id', entry[1], 'record', entry[2], 'worker', entry[3], 'platform', entry[4], 'version', entry[5]}
    if entry[6] ~= '' then
      fields[11], fields[12] = 'dialect', entry[6]
    end
    local added = redis.pcall('XADD', KEYS[1], '*', unpack(fields))
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

#: Maximum number of entries per call. The Redis server is blocked during a call.
_RECORDS_A_CALL = 1000

# Uses the commands of _APPEND, so it fails when _APPEND would fail: on a replica, over maxmemory, without a permission,
# with a full disk. It deletes the keys that it writes.
_TRY = """
redis.call('XLEN', KEYS[1])
redis.call('SET', KEYS[2], 1, 'EX', 60, 'NX')
redis.call('DEL', KEYS[2])
redis.call('XADD', KEYS[2], '*', 'id', 1)
redis.call('DEL', KEYS[2])
return 1
"""

#: Maximum connections for appends, and for health checks and scrapes, which must not wait behind appends.
_APPENDING, _CHECKING = 16, 4
#: Timeout of an append in seconds.
_APPEND_TIMEOUT_S = 10.0
#: Seconds after which a client may try again.
_RETRY_AFTER_S = 2


class Entry(NamedTuple):
    """One entry of the stream, all of text.

    Parameters
    ----------
    id : str
        Made by the client; kept once.
    record : str
        The record's line.
    worker, platform : str
        Names of the worker that measured and of the platform on which it measured.
    version : str
        Model version that the worker's search used; empty if it did not say.
    dialect : str
        Dialect of the record; empty for the default one, whose entries do not have the field.
    """

    id: str
    record: str
    worker: str
    platform: str
    version: str
    dialect: str = ""


class MeasurementStream:
    """Appends measurements to the stream, each id once.

    Parameters
    ----------
    url : str
        URL of a Redis or Valkey server.
    id_days : int
        Days for which an id is remembered. A client that resends later than that is counted twice.
    """

    def __init__(self, url: str, id_days: int = 7) -> None:
        self._client: Any = connect_asyncio(
            url, _APPEND_TIMEOUT_S, encoding_errors="replace", connections=_APPENDING
        )
        self._append = self._client.register_script(_APPEND)
        self._id_seconds = id_days * 86400
        self._checks: Any = connect_asyncio(
            url,
            LIMIT_S,
            encoding_errors="replace",
            connections=_CHECKING,
            connect_timeout_s=LIMIT_S,
        )
        try_write = self._checks.register_script(_TRY)
        self.probe = WriteProbe(lambda: try_write(keys=[STREAM, PROBE]))

    async def append(self, entries: Sequence[Entry]) -> list[int]:
        """Append the entries whose id is new and return the positions of those.

        Raises
        ------
        NotReady
            If the stream cannot be written. Some of the entries may have been appended; sending the same request
            again is safe.
        """
        added: list[int] = []
        try:
            for start in range(0, len(entries), _RECORDS_A_CALL):
                part = entries[start : start + _RECORDS_A_CALL]
                packed = msgspec.msgpack.encode(part)
                known = set(await self._append(keys=[STREAM, SEEN], args=[self._id_seconds, packed, GROUP]))
                added += [start + position for position in range(len(part)) if position not in known]
                self.probe.note(None)
        except (RedisError, OSError) as error:
            self.probe.note(error)
            raise _not_ready("written", error) from None
        return added

    async def length(self) -> int:
        """Return the number of entries.

        Raises
        ------
        NotReady
            If the stream cannot be reached.
        """
        return int(await _soon(self._checks.xlen(STREAM)))

    async def quality(self) -> bytes | None:
        """Return the recorder's latest report of prediction error, or None if it has expired.

        Raises
        ------
        NotReady
            If the server cannot be reached.
        """
        document = await _soon(self._checks.get(QUALITY))
        return None if document is None else str(document).encode(errors="replace")

    async def weaknesses(self) -> list[str]:
        """Return how the Redis server could lose acknowledged measurements, see `guarantee.weaknesses`.

        Raises
        ------
        NotReady
            If the server cannot be asked.
        """
        info = await _soon(_allowed(self._checks.info()))
        found = [
            await _soon(_allowed(self._checks.config_get(names))) for names in ("*append*", "maxmemory*")
        ]
        config = None if None in found else {name: got for part in found for name, got in part.items()}
        return weaknesses(config, info)

    async def close(self) -> None:
        """Close the connections."""
        self.probe.close()
        await self._client.aclose()
        await self._checks.aclose()


async def _allowed(answer: Awaitable[Any]) -> Any:
    """Return the answer to a command, or None if the server does not allow it; most hosted ones do not allow CONFIG."""
    try:
        return await answer
    except ResponseError:
        return None


async def _soon(answer: Awaitable[Any]) -> Any:
    try:
        return await asyncio.wait_for(answer, LIMIT_S)
    except (RedisError, OSError, asyncio.TimeoutError) as error:
        raise _not_ready("reached", error) from None


def _not_ready(what: str, error: BaseException) -> NotReady:
    return NotReady(f"the measurement stream cannot be {what}: {cause_of(error)}", retry_after=_RETRY_AFTER_S)
