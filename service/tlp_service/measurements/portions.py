"""Takes entries from the stream for a consumer, in portions bounded by count and by bytes."""

from __future__ import annotations

from typing import Any

from tlp_service.measurements.stream import GROUP, STREAM

# XREADGROUP bounds only the number of entries, and one entry may be as large as a request body.
# So this script reads one entry at a time, until the total reaches either bound.
# ARGV: group, consumer, '>' for new entries or an id for the pending ones after it, maximum entries, maximum bytes.
_TAKE = """
local taken, bytes, after = {}, 0, ARGV[3]
while #taken < tonumber(ARGV[4]) and bytes < tonumber(ARGV[5]) do
  local answer = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', 1, 'STREAMS', KEYS[1], after)
  local message = answer and answer[1][2][1]
  if not message then break end
  for _, text in ipairs(message[2] or {}) do bytes = bytes + #text end
  taken[#taken + 1] = message
  if after ~= '>' then after = message[1] end
end
return taken
"""

# Claims idle pending entries, as XAUTOCLAIM does, but leaves out entries that are held back.
# It returns no fields, since those have no bound in bytes.
# Redis 7 removes deleted entries from the pending list when they are claimed; earlier releases do not.
# ARGV: group, consumer, idle milliseconds, maximum entries, the consumer of held-back entries.
# Returns the number of claimed entries, the ids of deleted ones, and the number of held-back ones.
_CLAIM = """
local claimed, gone, held = {}, {}, 0
for _, told in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for i = 1, #told, 2 do consumer[told[i]] = told[i + 1] end
  local left = tonumber(ARGV[4]) - #claimed - #gone
  if consumer.name == ARGV[5] then
    held = consumer.pending
  elseif consumer.pending > 0 and left > 0 then
    local pending = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[3], '-', '+', left, consumer.name)
    for _, entry in ipairs(pending) do
      local id = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], entry[1], 'JUSTID')[1]
      if id then claimed[#claimed + 1] = id else gone[#gone + 1] = entry[1] end
    end
  end
end
return {#claimed, gone, held}
"""

#: Stream id and fields of an entry.
Message = tuple[str, dict[str, str]]


class Portions:
    """Entries for one consumer of the recorder's group, as pairs of id and fields. A deleted entry has no fields.

    Parameters
    ----------
    client : Redis
        Client that decodes answers to text.
    consumer : str
        Name of the consumer.
    """

    def __init__(self, client: Any, consumer: str) -> None:
        self._client = client
        self._consumer = consumer
        self._take = client.register_script(_TAKE)
        self._claim = client.register_script(_CLAIM)

    def pending(self, after: str, count: int, nbytes: int) -> list[Message]:
        """Return the first pending entries of this consumer after an id."""
        return self._portion(after, count, nbytes)

    def new(self, count: int, nbytes: int, wait_s: float) -> list[Message]:
        """Return entries that were not delivered to any consumer yet; block for the first one."""
        if taken := self._portion(">", count, nbytes):
            return taken
        # A script cannot block, so the wait for the first entry is a plain XREADGROUP.
        answer = self._client.xreadgroup(
            GROUP, self._consumer, {STREAM: ">"}, count=1, block=int(wait_s * 1000)
        )
        first = [(id_, fields or {}) for id_, fields in answer[0][1]] if answer else []
        if first and count > 1:
            first += self._portion(">", count - 1, nbytes)
        return first

    def claim(self, idle_s: float, count: int) -> tuple[int, list[str], int]:
        """Claim pending entries of all consumers that have been idle for `idle_s` seconds.

        Returns the number of claimed entries, the ids of deleted ones (always empty before Redis 7), and the number
        of held-back ones.
        """
        args = [GROUP, self._consumer, int(idle_s * 1000), count, held_consumer(self._consumer)]
        claimed, gone, held = self._claim(keys=[STREAM], args=args)
        return claimed, gone, held

    def _portion(self, after: str, count: int, nbytes: int) -> list[Message]:
        taken = self._take(keys=[STREAM], args=[GROUP, self._consumer, after, count, nbytes])
        return [(id_, dict(zip(texts[::2], texts[1::2], strict=True))) for id_, texts in map(_present, taken)]


def _present(message: list[Any]) -> tuple[str, list[str]]:
    return message[0], (message[1] if len(message) > 1 else None) or []


def byte_text(text: str) -> bytes:
    """Return the bytes from which a text was decoded, UTF-8 or not; hiredis does not encode surrogates."""
    return text.encode(errors="surrogateescape")


def held_consumer(consumer: str) -> str:
    """Return the name of the consumer for which a consumer's held-back entries are pending."""
    return f"{consumer}:held"
