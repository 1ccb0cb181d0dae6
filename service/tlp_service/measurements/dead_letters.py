"""Keeps stream entries that are not valid records, each with the reason."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from tlp_service.measurements.portions import byte_text
from tlp_service.measurements.stream import GROUP, STREAM

log = logging.getLogger(__name__)

#: Redis key of the stream of dead letters.
DEAD = "{tlp}:dead"
#: Approximate number of dead letters that are kept.
_MAX_DEAD = 10_000
#: Maximum bytes of the fields of a dead letter; an ordinary record is smaller.
_MAX_LETTER_BYTES = 8 << 10
#: Maximum bytes of a field name in a dead letter.
_MAX_NAME_BYTES = 128

# Acknowledges an entry and adds its dead letter atomically, so that it is neither lost nor added twice.
# A Redis server that is out of memory allows a script that begins with XACK, so the acknowledgement comes first.
# ARGV: group, entry, length of the stream of dead letters, then names and values of the letter.
_BURY = """
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
return redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', unpack(ARGV, 4))
"""


class DeadLetters:
    """A stream of dead letters, bounded in its length and in the size of each letter.

    Parameters
    ----------
    client : Redis
        Client of the server that holds the measurement stream.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._bury = client.register_script(_BURY)

    def bury(self, dead: Sequence[tuple[str, dict[str, str], str]]) -> None:
        """Acknowledge entries and keep them as dead letters; log an entry that cannot be kept, and acknowledge it, too.

        Parameters
        ----------
        dead : sequence of (str, dict, str)
            Id in the stream, fields, and the reason why the entry is not a valid record.
        """
        if not dead:
            return
        with self._client.pipeline(transaction=False) as pipeline:
            for id_, fields, reason in dead:
                letter = letter_of(id_, fields, reason, time.time())
                args = [GROUP, id_, _MAX_DEAD, *(part for pair in letter.items() for part in pair)]
                self._bury(keys=[STREAM, DEAD], args=args, client=pipeline)
            outcomes = pipeline.execute(raise_on_error=False)
        lost = []
        for (id_, _, reason), outcome in zip(dead, outcomes, strict=True):
            log.warning("entry %s of the measurement stream is not a valid record: %.1000s", id_, reason)
            if isinstance(outcome, ResponseError):
                log.warning("entry %s is not kept among the dead letters: %s", id_, outcome)
                lost.append(id_)
            elif isinstance(outcome, Exception):
                raise outcome
        if lost:
            self._client.xack(STREAM, GROUP, *lost)


def letter_of(id_: str, fields: dict[str, str], reason: str, time_s: float) -> dict[bytes, bytes]:
    """Return the dead letter of an entry; if it is shortened, its field `cut_from` holds the original size in bytes."""
    letter: dict[bytes, bytes] = {}
    size, left = 0, _MAX_LETTER_BYTES
    for name, value in fields.items():
        field, content = byte_text(name), byte_text(value)
        size += len(field) + len(content)
        if left > 0:
            field = field[:_MAX_NAME_BYTES]
            content = content[: max(0, left - len(field))]
            letter[field] = content
            left -= len(field) + len(content)
    if size > sum(len(field) + len(content) for field, content in letter.items()):
        letter[b"cut_from"] = str(size).encode()
    kept_reason = byte_text(reason)[:_MAX_LETTER_BYTES]
    return {**letter, b"reason": kept_reason, b"entry": id_.encode(), b"time": f"{time_s:.3f}".encode()}
