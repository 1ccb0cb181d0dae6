"""Moves measurements from the stream into the record store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import pyarrow as pa
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from tlp_client.errors import InvalidInput, is_text
from tlp_client.records import Record, RecordParser
from tlp_client.wire.fields import read_name
from tlp_service.children import Stopping
from tlp_service.measurements.dead_letters import DEAD, DeadLetters
from tlp_service.measurements.portions import Portions, byte_text
from tlp_service.measurements.stream import GROUP, PROBE, STREAM, Entry
from tlp_service.records.schema import Rows, Texts
from tlp_service.records.store import RecordStore
from tlp_service.redis_url import connect

log = logging.getLogger(__name__)

__all__ = ["DEAD", "GROUP", "Moved", "Recorder"]

#: Entries of one batch, and bytes: a batch ends with the entry that reaches them. As objects they take some ten times that.
_BATCH, _MAX_BATCH_BYTES = 2000, 8 << 20
#: Seconds that a batch is waited for, and after which it is taken from a consumer that has not finished it.
_WAIT_S, _CLAIM_S = 1.0, 60.0
#: Seconds in which more is let come in after a batch that was not full: each costs a file and its way to the disk.
_GATHER_S = 0.5
#: Seconds until the stream is asked again after it could not be reached.
_PAUSE_S = 1.0
#: Last number of the entries of a millisecond.
_LAST_NUMBER = 2**64 - 1

# A server over its maxmemory takes no new group, unless a script begins with a write that needs no memory: by its documentation the
# rest of that script is then allowed.
_CREATE_GROUP = """
redis.call('DEL', KEYS[2])
return redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
"""

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
    knows its records by their contents. Acknowledging and cutting are allowed on a server that is full, so that it does not stay so.

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
        # Nothing is sent again unseen: what a lost answer held would stay with this consumer, and wait for a minute.
        self._client: Any = connect(url, timeout_s=10 + _WAIT_S, encoding_errors="surrogateescape", retries=0)
        self._portions = Portions(self._client, name)
        self._dead_letters = DeadLetters(self._client)
        self._store = store
        self._name = name
        self._parser, self._texts = RecordParser(), Texts()
        self._is_registered = False
        self._takes_pending = True
        self._is_behind = False

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
        self._is_behind = len(messages) >= _BATCH or _size(messages) >= _MAX_BATCH_BYTES
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
                if not self._is_behind and (moved.records or moved.dead):
                    is_stopping.wait(_GATHER_S)
            except (RedisError, OSError, pa.ArrowException) as error:  # of the stream, or of the disk
                if not is_lost:
                    log.warning("measurements wait in the stream: %s", error)
                is_lost = True
                # What a lost answer held is pending; a server that was set up anew has no group.
                self._takes_pending, self._is_registered = True, False
                self._client.connection_pool.disconnect()  # the server's name may mean another one by now
                is_stopping.wait(_PAUSE_S)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _register(self) -> None:
        try:
            try:
                self._client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
            except OutOfMemoryError:
                self._client.eval(_CREATE_GROUP, 2, STREAM, PROBE, GROUP)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._is_registered = True

    def _next_batch(self) -> list[_Message]:
        """Return what this consumer was given before and never finished, else what another one left, else what is new."""
        if self._takes_pending:
            if pending := self._portions.pending(_BATCH, _MAX_BATCH_BYTES):
                return pending
            self._takes_pending = False
        claimed, gone = self._portions.claim(_CLAIM_S, _BATCH)
        # Entries that were cut off the stream before they were finished have no fields.
        left: list[_Message] = [(id_, {}) for id_ in gone]
        if claimed:
            left += self._portions.pending(_BATCH, _MAX_BATCH_BYTES)
            self._takes_pending = True  # for those that are beyond this batch
        return left or self._portions.new(_BATCH, _MAX_BATCH_BYTES, _WAIT_S)

    def _move(self, messages: Sequence[_Message]) -> Moved:
        read, dead = [], {}
        for id_, fields in messages:
            try:
                entry = _entry_of(fields)
                read.append((id_, entry, self._parser.parse(entry.record)))
            except InvalidInput as error:
                dead[id_] = str(error)
            except MemoryError:  # which is not the entry's fault
                raise
            except Exception as error:  # whatever one entry does to the parser, the others are to be stored
                log.exception("entry %s of the measurement stream cannot be read", id_)
                dead[id_] = f"it cannot be read: {type(error).__name__}"
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
        stored = [id_ for id_, _ in messages if id_ not in dead]
        if stored:  # by itself: a server that is full refuses it together with anything that needs memory
            self._client.xack(STREAM, GROUP, *stored)
        self._dead_letters.bury([(id_, fields, dead[id_]) for id_, fields in messages if id_ in dead])
        self._trim()

    def _trim(self) -> None:
        """Cut off the stream what every group has finished."""
        firsts = []
        for group in self._client.xinfo_groups(STREAM):
            pending = self._client.xpending(STREAM, byte_text(group["name"]))
            firsts.append(pending["min"] if pending["pending"] else _after(group["last-delivered-id"]))
        if firsts:
            self._client.xtrim(STREAM, minid=min(firsts, key=_order), approximate=False)


def _entry_of(fields: dict[str, str]) -> Entry:
    if fields.keys() != set(Entry._fields):
        raise InvalidInput(f"its fields are {', '.join(fields) or 'gone'}, not {', '.join(Entry._fields)}")
    entry = Entry(**fields)
    if not all(map(is_text, entry)):
        raise InvalidInput("it is not UTF-8")
    read_name(entry.platform, "platform")  # it becomes the name of a folder
    return entry


def _size(messages: Sequence[_Message]) -> int:
    """Return the characters of messages, which are at most their bytes."""
    return sum(len(name) + len(value) for _, fields in messages for name, value in fields.items())


def _after(entry: str) -> str:
    time_ms, number = _order(entry)
    return f"{time_ms}-{number + 1}" if number < _LAST_NUMBER else f"{time_ms + 1}-0"


def _order(entry: str) -> tuple[int, int]:
    time_ms, number = entry.split("-")
    return int(time_ms), int(number)
