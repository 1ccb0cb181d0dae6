"""The measurement log: one Redis stream, written before a measurement is acknowledged."""

from __future__ import annotations

from collections.abc import Sequence

import redis.asyncio
from redis.exceptions import RedisError

from tlp_client.wire.measurements import Measurement
from tlp_service.errors import NotReady

# The braces put all keys into one slot of a Redis cluster.
STREAM = "{tlp}:measurements"
SEEN = "{tlp}:measurement:"

# One script, so that a record and its id are written both or not at all. The entry comes first: should XADD
# fail, the id is not taken. ARGV: seconds an id is remembered, then field values of each record, id first.
_APPEND = """
local added = 0
for i = 2, #ARGV, 5 do
  local seen = KEYS[2] .. ARGV[i]
  if redis.call('EXISTS', seen) == 0 then
    redis.call('XADD', KEYS[1], '*', 'id', ARGV[i], 'record', ARGV[i + 1], 'worker', ARGV[i + 2],
               'platform', ARGV[i + 3], 'version', ARGV[i + 4])
    redis.call('SET', seen, 1, 'EX', ARGV[1])
    added = added + 1
  end
end
return added
"""

#: Lua's unpack and Redis' argument limits stay far above this.
_RECORDS_A_CALL = 1000


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
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url, max_connections=16, timeout=5, socket_timeout=10, socket_connect_timeout=5
        )
        self._client = redis.asyncio.Redis(connection_pool=pool)
        self._append = self._client.register_script(_APPEND)
        self._id_seconds = id_days * 86400

    async def append(
        self,
        measurements: Sequence[Measurement],
        *,
        worker: str,
        platforms: Sequence[str],
        version: str | None,
    ) -> int:
        """Append the measurements whose id is new and return how many those were.

        Parameters
        ----------
        platforms : sequence of str
            Platform of each measurement.
        version : str or None
            Model version that the worker's search used.

        Raises
        ------
        NotReady
            If the stream cannot be written. Nothing, or the first part, may have been: the same request can
            be sent again.
        """
        rows = [
            (m.id, m.record.to_line(), worker, platform, version or "")
            for m, platform in zip(measurements, platforms, strict=True)
        ]
        added = 0
        try:
            for start in range(0, len(rows), _RECORDS_A_CALL):
                values = [value for row in rows[start : start + _RECORDS_A_CALL] for value in row]
                added += int(await self._append(keys=[STREAM, SEEN], args=[self._id_seconds, *values]))
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
            return int(await self._client.xlen(STREAM))
        except (RedisError, OSError) as error:
            raise NotReady(f"the measurement stream cannot be reached: {error}", retry_after=2) from None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
