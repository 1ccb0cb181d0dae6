"""Where entries of the stream go that are no records, each with its reason."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from tlp_service.measurements.portions import byte_text
from tlp_service.measurements.stream import GROUP, STREAM

log = logging.getLogger(__name__)

DEAD = "{tlp}:dead"
#: Dead letters that are kept, about.
_MOST_DEAD = 10_000
#: Bytes that are kept of one: enough to see what it was, and all of an ordinary record.
_MAX_LETTER_BYTES = 8 << 10
#: Bytes that are kept of a field's name.
_MAX_NAME_BYTES = 128

# Acknowledges, then keeps, in one step: an entry is neither lost on its way nor twice among the dead. The acknowledgement comes first,
# for it is allowed where memory is short, and after it the rest of the script is, too.
# ARGV: group, entry, letters that are kept, then names and values of the letter.
_BURY = """
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
return redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', unpack(ARGV, 4))
"""


class DeadLetters:
    """A stream of its own, of bounded length; its letters are bounded, too.

    Parameters
    ----------
    client : Redis
        Of the server that holds the stream.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._bury = client.register_script(_BURY)

    def bury(self, dead: Sequence[tuple[str, dict[str, str], str]]) -> None:
        """Acknowledge entries and keep them, with reasons. Where one can't be kept that is logged, and it is acknowledged all the same.

        Parameters
        ----------
        dead : sequence of (str, dict, str)
            Id in the stream, fields, and why it is no record.
        """
        if not dead:
            return
        with self._client.pipeline(transaction=False) as pipeline:
            for id_, fields, reason in dead:
                letter = letter_of(id_, fields, reason, time.time())
                args = [GROUP, id_, _MOST_DEAD, *(part for pair in letter.items() for part in pair)]
                self._bury(keys=[STREAM, DEAD], args=args, client=pipeline)
            outcomes = pipeline.execute(raise_on_error=False)
        lost = []
        for (id_, _, reason), outcome in zip(dead, outcomes, strict=True):
            log.warning("entry %s of the measurement stream is no record: %.1000s", id_, reason)
            if isinstance(outcome, ResponseError):
                log.warning("entry %s is not kept among the dead letters: %s", id_, outcome)
                lost.append(id_)
            elif isinstance(outcome, Exception):
                raise outcome
        if lost:
            self._client.xack(STREAM, GROUP, *lost)


def letter_of(id_: str, fields: dict[str, str], reason: str, time_s: float) -> dict[bytes, bytes]:
    """Return what is kept of an entry; `cut_from` tells how many bytes it had where that is not all."""
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
