"""Takes entries from the stream for a consumer, in portions bounded by count and by bytes."""

from __future__ import annotations

from typing import Any

from tlp_service.measurements.stream import GROUP, STREAM

# XREADGROUP bounds only the number of entries, and one entry may be as large as a body. So this script takes one at a time.
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

# Takes over what was not finished, as XAUTOCLAIM does, but not what is held back. Without fields, for the same reason as above.
# Redis 7 forgets entries that are gone when they are claimed, earlier releases don't.
# ARGV: group, consumer, milliseconds, entries at most, the consumer of those that are held back. Returns how many were taken over, the
# ids of those that are gone, and how many are held back.
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

#: id in the stream, and fields
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
        """Return the first entries after an id that this consumer was given and has not finished."""
        return self._portion(after, count, nbytes)

    def new(self, count: int, nbytes: int, wait_s: float) -> list[Message]:
        """Return entries that no consumer was given yet; waits for the first one."""
        if taken := self._portion(">", count, nbytes):
            return taken
        # A script cannot block, so the first entry is waited for without one.
        answer = self._client.xreadgroup(
            GROUP, self._consumer, {STREAM: ">"}, count=1, block=int(wait_s * 1000)
        )
        first = [(id_, fields or {}) for id_, fields in answer[0][1]] if answer else []
        if first and count > 1:
            first += self._portion(">", count - 1, nbytes)
        return first

    def claim(self, idle_s: float, count: int) -> tuple[int, list[str], int]:
        """Take over what was not finished for so long, by whatever consumer, as pending of this one.

        Returns how many entries that are, the ids of those that are gone (Redis before 7 names none of them here), and how many are
        held back.
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
    """Return the name of the consumer that keeps what a consumer holds back."""
    return f"{consumer}:held"
