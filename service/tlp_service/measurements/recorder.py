"""The recorder: a stream consumer that moves measurements into the record store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import pyarrow as pa
from redis.exceptions import RedisError, ResponseError

from tlp_client.errors import InvalidInput, is_text
from tlp_client.records import Record, RecordParser
from tlp_client.wire.fields import read_name
from tlp_service.children import Stopping
from tlp_service.errors import NotAllStored
from tlp_service.measurements.dead_letters import DEAD, DeadLetters
from tlp_service.measurements.entry_ids import after, order
from tlp_service.measurements.held_back import HeldBack
from tlp_service.measurements.portions import Message, Portions, byte_text
from tlp_service.measurements.stream import GROUP, PROBE, STREAM, Entry
from tlp_service.records.schema import Rows, Texts
from tlp_service.records.store import RecordStore
from tlp_service.redis_url import connect

log = logging.getLogger(__name__)

__all__ = ["DEAD", "GROUP", "BatchResult", "Recorder"]

#: Bounds of a batch in entries and in bytes: it ends with the entry that reaches either.
#: In memory, entries take about ten times their bytes.
_BATCH, _MAX_BATCH_BYTES = 2000, 8 << 20
#: Seconds to block for a new batch, and idle seconds after which another consumer's pending entries are claimed.
_WAIT_S, _CLAIM_S = 1.0, 60.0
#: Id that sorts before all entries.
_FIRST = "0"
#: Seconds to pause after a batch that was not full, so that fewer, larger batches are written.
#: Each batch costs a file and a sync to disk.
_GATHER_S = 0.5
#: Seconds until the recorder retries after the stream could not be reached.
_PAUSE_S = 1.0

# A Redis server over its maxmemory refuses to create a consumer group.
# It allows a script whose first write needs no memory, so this one begins with DEL.
_CREATE_GROUP = """
redis.call('DEL', KEYS[2])
return redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
"""

#: Fields that every entry must have.
_REQUIRED = [name for name in Entry._fields if name not in Entry._field_defaults]

#: Stream id, fields, and the parsed record of an entry.
_Read = tuple[str, Entry, Record]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of moving a batch.

    Parameters
    ----------
    records : list of (Entry, Record)
        Entries that were written to the store.
    times_s : list of float
        Unix time in seconds at which each of them was added to the stream.
    dead : dict
        Stream id -> the reason why the entry is not a valid record.
    waiting : dict
        Stream id -> platform, for entries whose platform the store refuses.
    reasons : dict
        Platform -> the error with which the store refused it in this batch.
    """

    records: list[tuple[Entry, Record]] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    dead: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, Exception] = field(default_factory=dict)


class Recorder:
    """A consumer of the stream that writes each record to the record store exactly once, even across crashes.

    A batch is written to the store, then acknowledged, then trimmed from the stream. After a crash in between, the
    batch is delivered again, and the store deduplicates its records by content. Acknowledging and trimming work on
    a Redis server that is out of memory, so the server recovers. Entries of a platform that the store refuses are
    held back without delaying other platforms.

    Parameters
    ----------
    url : str
        URL of the Redis or Valkey server that holds the stream.
    store : RecordStore
        The record store to write to.
    name : str
        Name of the consumer. Only one process may use it at a time; its pending entries are delivered to it again.
    """

    def __init__(self, url: str, store: RecordStore, name: str) -> None:
        # The timeout exceeds a blocking read, and keeps a server that hangs from blocking this process for ever.
        # No automatic retries: entries of a lost answer would stay pending for this consumer until they are claimed.
        self._client: Any = connect(url, timeout_s=10 + _WAIT_S, encoding_errors="surrogateescape", retries=0)
        self._portions = Portions(self._client, name)
        self._dead_letters = DeadLetters(self._client)
        self._held = HeldBack(self._client, name)
        self._store = store
        self._parsers: dict[str, RecordParser] = {}  # by dialect
        self._texts = Texts()
        self._is_registered = False
        self._takes_pending = True
        self._is_behind = False
        self._are_held = False  # whether the last batch came from the held-back entries

    def step(self) -> BatchResult:
        """Move one batch, blocking for at most a second if the stream has no entries.

        Raises
        ------
        RedisError
            If the stream cannot be reached. Nothing is lost: entries without acknowledgement are delivered again.
        """
        if not self._is_registered:
            self._register()
        messages = self._next_batch()
        self._is_behind = len(messages) >= _BATCH or _size(messages) >= _MAX_BATCH_BYTES
        if not messages:
            return BatchResult()
        result = self._move(messages)
        self._acknowledge(messages, result)
        return result

    def run(self, is_stopping: Stopping | Event, take: Callable[[BatchResult], None]) -> None:
        """Move batches until an event is set, and pass each result to `take`; retry if stream or store fail."""
        is_lost = False
        while not is_stopping.is_set():
            try:
                result = self.step()
                take(result)
                if is_lost:
                    log.info("measurements go to the record store again")
                is_lost = False
                if not self._is_behind and (result.records or result.dead):
                    is_stopping.wait(_GATHER_S)
            except (RedisError, OSError, pa.ArrowException) as error:  # the stream or the disk failed
                if not is_lost:
                    log.warning("measurements wait in the stream: %s", error)
                is_lost = True
                # The entries of a lost answer are pending, and a server without its old data has no consumer group.
                self._takes_pending, self._is_registered = True, False
                self._held.begin_again()
                self._client.connection_pool.disconnect()  # the host name may resolve to another server by now
                is_stopping.wait(_PAUSE_S)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _register(self) -> None:
        try:
            self._client.eval(_CREATE_GROUP, 2, STREAM, PROBE, GROUP)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._is_registered = True

    def _next_batch(self) -> list[Message]:
        """Return the next entries to store.

        The order is: pending entries of this consumer, held-back entries, entries claimed from other consumers,
        new entries.
        """
        self._are_held = False
        if self._takes_pending:
            if pending := self._portions.pending(_FIRST, _BATCH, _MAX_BATCH_BYTES):
                return pending
            self._takes_pending = False
        if held := self._held.portion(_BATCH, _MAX_BATCH_BYTES):
            self._are_held = True
            return held
        claimed, gone, is_holding = self._portions.claim(_CLAIM_S, _BATCH)
        if is_holding:
            self._held.look()
        # Entries that were trimmed from the stream while they were pending have no fields.
        left: list[Message] = [(id_, {}) for id_ in gone]
        if claimed:
            left += self._portions.pending(_FIRST, _BATCH, _MAX_BATCH_BYTES)
            self._takes_pending = True  # more entries may have been claimed than fit into this batch
        return left or self._portions.new(_BATCH, _MAX_BATCH_BYTES, _WAIT_S)

    def _move(self, messages: Sequence[Message]) -> BatchResult:
        read: list[_Read] = []
        dead: dict[str, str] = {}
        waiting: dict[str, str] = {}
        for id_, fields in messages:
            try:
                entry = _entry_of(fields)
                if self._held.refuses(entry.platform):
                    waiting[id_] = entry.platform
                else:
                    read.append((id_, entry, self._parser_of(entry.dialect).parse(entry.record)))
            except InvalidInput as error:
                dead[id_] = str(error)
            except MemoryError:  # not the fault of the entry
                raise
            except Exception as error:
                # One entry that breaks the parser must not keep the others from being stored.
                log.exception("entry %s of the measurement stream cannot be read", id_)
                dead[id_] = f"it cannot be read: {type(error).__name__}"
        reasons: dict[str, Exception] = {}
        try:
            self._store.append(self._tables(read, dead))
        except NotAllStored as error:
            reasons = error.reasons
            waiting |= {id_: entry.platform for id_, entry, _ in read if entry.platform in reasons}
        stored = [one for one in read if one[0] not in dead and one[0] not in waiting]
        times_s = [order(id_)[0] / 1000 for id_, _, _ in stored]
        records = [(entry, record) for _, entry, record in stored]
        return BatchResult(records, times_s, dead, waiting, reasons)

    def _parser_of(self, dialect: str) -> RecordParser:
        parser = self._parsers.get(dialect)
        if parser is None:
            parser = self._parsers[dialect] = RecordParser(dialect=dialect or None)
        return parser

    def _tables(self, read: Sequence[_Read], dead: dict[str, str]) -> list[pa.Table]:
        """Return one table of rows per platform; a record that cannot be stored becomes a dead letter.

        Halving the batch isolates such a record, so that the others are stored.
        """
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

    def _acknowledge(self, messages: Sequence[Message], result: BatchResult) -> None:
        stored = [id_ for id_, _ in messages if id_ not in result.dead and id_ not in result.waiting]
        if stored:  # sent separately: a full server refuses a script or transaction that also needs memory
            self._client.xack(STREAM, GROUP, *stored)
        dead = [(id_, fields, result.dead[id_]) for id_, fields in messages if id_ in result.dead]
        self._dead_letters.bury(dead)
        if result.waiting:
            waiting = {id_: result.waiting[id_] for id_, _ in messages if id_ in result.waiting}
            self._held.keep(waiting, result.reasons, self._are_held)
        self._trim([id_ for id_, _ in messages if id_ not in result.waiting])

    def _trim(self, done: Sequence[str]) -> None:
        """Trim the entries that every consumer group has finished.

        While entries are held back, trimming stops at the first of them, so finished entries behind it are deleted.
        """
        firsts, of_others = [], []
        is_holding = False
        for group in self._client.xinfo_groups(STREAM):
            name = byte_text(group["name"])
            pending = self._client.xpending(STREAM, name)
            firsts.append(pending["min"] if pending["pending"] else after(group["last-delivered-id"]))
            if name == GROUP.encode():
                is_holding = any(c["name"] == self._held.consumer for c in pending["consumers"])
            else:
                of_others.append(firsts[-1])
        if firsts:
            self._client.xtrim(STREAM, minid=min(firsts, key=order), approximate=False)
        if is_holding:  # held-back entries may block trimming for a long time
            first = min(of_others, key=order, default=None)
            if deleted := [id_ for id_ in done if first is None or order(id_) < order(first)]:
                self._client.xdel(STREAM, *deleted)


def _entry_of(fields: dict[str, str]) -> Entry:
    if not set(_REQUIRED) <= fields.keys() <= set(Entry._fields):
        raise InvalidInput(f"its fields are {', '.join(fields) or 'gone'}, not {', '.join(_REQUIRED)}")
    entry = Entry(**fields)
    if not all(map(is_text, entry)):
        raise InvalidInput("it is not UTF-8")
    read_name(entry.platform, "platform")  # it becomes the name of a folder
    return entry


def _size(messages: Sequence[Message]) -> int:
    """Return the characters of messages, which are at most their bytes."""
    return sum(len(name) + len(value) for _, fields in messages for name, value in fields.items())
