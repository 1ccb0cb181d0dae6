"""Moves measurements from the stream into the record store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import pyarrow as pa
import redis
from redis.exceptions import RedisError, ResponseError

from tlp_client.errors import InvalidInput, is_text
from tlp_client.records import Record, RecordParser
from tlp_client.wire.fields import read_name
from tlp_service.children import Stopping
from tlp_service.measurements.stream import STREAM, Entry
from tlp_service.records.schema import Rows, Texts
from tlp_service.records.store import RecordStore

log = logging.getLogger(__name__)

#: Consumer group of the record store, and where entries go that are no records, each with its reason.
GROUP = "store"
DEAD = "{tlp}:dead"
#: Dead entries that are kept, about.
_MOST_DEAD = 10_000

#: Entries of one batch.
_BATCH = 2000
#: Seconds that a batch is waited for, and after which it is taken from a consumer that has not finished it.
_WAIT_S, _CLAIM_S = 1.0, 60.0
#: Seconds in which more is let come in after a batch that was not full: each costs a file and its way to the disk.
_GATHER_S = 0.5
#: Seconds until the stream is asked again after it could not be reached.
_PAUSE_S = 1.0
#: Last number of the entries of a millisecond.
_LAST_NUMBER = 2**64 - 1

#: id in the stream, and fields; the record that they hold
_Message = tuple[str, dict[str, str]]
_Read = tuple[str, Entry, Record]


@dataclass(frozen=True, slots=True)
class Moved:
    """What became of a batch.

    Parameters
    ----------
    records : list of (Entry, Record)
        In the store now.
    times_s : list of float
        When each came into the stream, in seconds since 1970.
    dead : dict
        Id in the stream -> why it is no record.
    """

    records: list[tuple[Entry, Record]] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    dead: dict[str, str] = field(default_factory=dict)


class Recorder:
    """A consumer of the stream that writes the record store, each record once, whatever is killed.

    A batch is written to the store, then acknowledged, then cut off the stream. Killed in between, the batch comes again, and the store
    knows its records by their contents.

    Parameters
    ----------
    url : str
        Of the Redis or Valkey that holds the stream.
    store : RecordStore
        Where to.
    name : str
        Of the consumer. One process has it at a time: what it was given before is given to it again.
    """

    def __init__(self, url: str, store: RecordStore, name: str) -> None:
        # Longer than a blocking read; a server that hangs must not hang this process.
        self._client: Any = redis.Redis.from_url(
            url, decode_responses=True, encoding_errors="surrogateescape", socket_timeout=10 + _WAIT_S
        )
        self._store = store
        self._name = name
        self._parser, self._texts = RecordParser(), Texts()
        self._is_registered = False
        self._takes_pending = True

    def step(self) -> Moved:
        """Move one batch, waiting a second for it.

        Raises
        ------
        RedisError
            If the stream cannot be reached. Nothing is lost: what was not acknowledged comes again.
        """
        if not self._is_registered:
            self._register()
        messages = self._next_batch()
        if not messages:
            return Moved()
        moved = self._move(messages)
        self._acknowledge(messages, moved.dead)
        return moved

    def run(self, is_stopping: Stopping | Event, take: Callable[[Moved], None]) -> None:
        """Move batches until an event is set, and pass on what was moved; what cannot be reached or written is tried again."""
        is_lost = False
        while not is_stopping.is_set():
            try:
                moved = self.step()
                take(moved)
                if is_lost:
                    log.info("measurements go to the record store again")
                is_lost = False
                if 0 < len(moved.records) + len(moved.dead) < _BATCH:
                    is_stopping.wait(_GATHER_S)
            except (RedisError, OSError, pa.ArrowException) as error:  # of the stream, or of the disk
                if not is_lost:
                    log.warning("measurements wait in the stream: %s", error)
                is_lost = True
                # What a lost answer held is pending; a server that was set up anew has no group.
                self._takes_pending, self._is_registered = True, False
                is_stopping.wait(_PAUSE_S)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _register(self) -> None:
        try:
            self._client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._is_registered = True

    def _next_batch(self) -> list[_Message]:
        """Return what this consumer was given before and never finished, else what another one left, else what is new."""
        if self._takes_pending:
            if pending := self._read("0"):
                return pending
            self._takes_pending = False
        _, claimed, *cut = self._client.xautoclaim(
            STREAM, GROUP, self._name, min_idle_time=int(_CLAIM_S * 1000), count=_BATCH
        )
        # Redis before 7 names no ids of what was cut off the stream before it was finished.
        left = [m for m in claimed if m[1]] + [(id_, {}) for ids in cut for id_ in ids]
        return left or self._read(">", block=int(_WAIT_S * 1000))

    def _read(self, after: str, block: int | None = None) -> list[_Message]:
        answer = self._client.xreadgroup(GROUP, self._name, {STREAM: after}, count=_BATCH, block=block)
        messages: list[_Message] = answer[0][1] if answer else []
        return [(id_, fields or {}) for id_, fields in messages]

    def _move(self, messages: Sequence[_Message]) -> Moved:
        read, dead = [], {}
        for id_, fields in messages:
            try:
                entry = Entry(**fields)
                if not all(map(is_text, entry)):
                    raise InvalidInput("it is not UTF-8")
                read_name(entry.platform, "platform")  # it becomes the name of a folder
                read.append((id_, entry, self._parser.parse(entry.record)))
            except TypeError:
                dead[id_] = f"its fields are {', '.join(fields) or 'gone'}, not {', '.join(Entry._fields)}"
            except InvalidInput as error:
                dead[id_] = str(error)
        self._store.append(self._tables(read, dead))
        stored = [one for one in read if one[0] not in dead]
        times_s = [_order(id_)[0] / 1000 for id_, _, _ in stored]
        return Moved([(entry, record) for _, entry, record in stored], times_s, dead)

    def _tables(self, read: Sequence[_Read], dead: dict[str, str]) -> list[pa.Table]:
        """Return the rows of records, a table a platform. A record that cannot be a row must not keep the others from it."""
        rows: dict[str, Rows] = {}
        for _, entry, record in read:
            of_platform = rows.setdefault(entry.platform, Rows(entry.platform, self._texts))
            of_platform.add(record, entry.record.encode(), f"worker:{entry.worker}", 0)
        try:
            return [of_platform.table() for of_platform in rows.values()]
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            if len(read) == 1:
                dead[read[0][0]] = f"it cannot be stored: {error}"
                return []
            middle = len(read) // 2
            return self._tables(read[:middle], dead) + self._tables(read[middle:], dead)

    def _acknowledge(self, messages: Sequence[_Message], dead: dict[str, str]) -> None:
        # In one transaction: an entry is neither lost on its way to the dead, nor twice among them.
        with self._client.pipeline(transaction=True) as pipeline:
            for id_, fields in messages:
                if id_ in dead:
                    letter = {**fields, "reason": dead[id_], "entry": id_, "time": f"{time.time():.3f}"}
                    pipeline.xadd(
                        DEAD,
                        {_bytes(name): _bytes(value) for name, value in letter.items()},
                        maxlen=_MOST_DEAD,
                        approximate=True,
                    )
            pipeline.xack(STREAM, GROUP, *(id_ for id_, _ in messages))
            pipeline.execute()
        for id_, reason in dead.items():
            log.warning("entry %s of the measurement stream is no record: %s", id_, reason)
        self._trim()

    def _trim(self) -> None:
        """Cut off the stream what every group has finished."""
        firsts = []
        for group in self._client.xinfo_groups(STREAM):
            pending = self._client.xpending(STREAM, _bytes(group["name"]))
            firsts.append(pending["min"] if pending["pending"] else _after(group["last-delivered-id"]))
        if firsts:
            self._client.xtrim(STREAM, minid=min(firsts, key=_order), approximate=False)


def _bytes(text: str) -> bytes:
    """Return the bytes that a text was read from, UTF-8 or not; hiredis takes no surrogates."""
    return text.encode(errors="surrogateescape")


def _after(entry: str) -> str:
    time_ms, number = _order(entry)
    return f"{time_ms}-{number + 1}" if number < _LAST_NUMBER else f"{time_ms + 1}-0"


def _order(entry: str) -> tuple[int, int]:
    time_ms, number = entry.split("-")
    return int(time_ms), int(number)
