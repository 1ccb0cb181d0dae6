"""Decodes rows of the record store into records."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from itertools import repeat
from sys import getsizeof
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tlp_client.bounded import BoundedCache, memory_of
from tlp_client.dialects.registry import DEFAULT, find
from tlp_client.errors import InvalidInput, InvalidPrimitive, Unsupported
from tlp_client.primitives import Primitive
from tlp_client.records import MAX_COSTS, MAX_LINE_BYTES, Record
from tlp_client.tasks import MAX_TARGET, MAX_WORKLOAD_KEY, Task, workload_of
from tlp_service.records.platform_folder import Choose
from tlp_service.records.split import Part, part_of
from tlp_service.records.store import RecordStore
from tlp_service.records.stored_file import value_bytes

log = logging.getLogger(__name__)

#: Maximum bytes of a value by column, from the bounds of a record at four bytes per character.
#: Without them, Python objects could take many times the size of the file.
_MAX_BYTES = {
    "primitives": MAX_LINE_BYTES,
    "costs": 8 * MAX_COSTS,
    "target": 4 * MAX_TARGET,
    "workload_key": 4 * MAX_WORKLOAD_KEY,
    "dialect": 128,
}

_COLUMNS = (
    "target",
    "workload_key",
    "hardware",
    "primitives",
    "costs",
    "error_no",
    "all_cost",
    "timestamp",
    "log_version",
    "dialect",
)

#: Columns that link workloads to the logs that they came from.
_SOURCE_COLUMNS = ["workload_key", "dialect", "source"]

#: Maximum bytes of the cache of primitives.
_PRIMITIVES_BYTES = 64 << 20


def stored_records(
    store: RecordStore, platforms: Sequence[str] | None = None, max_records: int | None = None
) -> Iterator[tuple[str, Record]]:
    """Yield ``(platform, record)`` for all records of a store, or of some platforms, failed runs, too.

    From a platform with more than `max_records` records, half of these are the newest, and half are drawn from all
    earlier ones. Records that exceed this release's bounds are left out, and their number is logged: an earlier
    release or another program may have written them.
    """
    reader = _Reader()
    for platform in platforms if platforms is not None else store.platforms:
        reader.left_out = 0
        for batch in store.batches(platform, _COLUMNS, None if max_records is None else _mix_of(max_records)):
            yield from zip(repeat(platform), reader.records(batch))
        if reader.left_out:
            log.warning(
                "%s: %d records are left out: they cannot be read, or have more than %d bytes of primitives "
                "or more than %d costs",
                platform,
                reader.left_out,
                MAX_LINE_BYTES,
                MAX_COSTS,
            )


def stored_sources(store: RecordStore) -> Iterator[tuple[str, str]]:
    """Yield workload and log of the records of a store, each pair once per platform."""
    for platform in store.platforms:
        found: dict[tuple[str, str], None] = {}
        for batch in store.batches(platform, _SOURCE_COLUMNS):
            distinct = pa.Table.from_batches([batch]).group_by(_SOURCE_COLUMNS).aggregate([])
            rows = zip(*(distinct[name].to_pylist() for name in _SOURCE_COLUMNS), strict=True)
            found.update(
                dict.fromkeys((stored_workload(key, dialect), source) for key, dialect, source in rows)
            )
        yield from found


def stored_workload(key: str, dialect: str | None) -> str:
    """Return the workload of a stored row (see `Task.workload`), or its plain key if the dialect is unknown."""
    try:
        return workload_of(key, dialect)
    except Unsupported:
        return f"{dialect}:{key}"


def part_of_store(store: RecordStore, part: Part) -> Iterator[tuple[str, Record]]:
    """Yield the records of a store whose workload is in a part of its split."""
    for platform, record in stored_records(store):
        if part_of(record.task.workload, store.seed) == part:
            yield platform, record


def _mix_of(max_records: int) -> Choose:
    def choose(count: int) -> npt.NDArray[np.int64]:
        if count <= max_records:
            return np.arange(count)
        older, drawn = count - max_records // 2, max_records - max_records // 2
        places = np.sort(np.random.default_rng(0).permutation(older)[:drawn])
        return np.concatenate([places, np.arange(older, count)])

    return choose


#: Workload key, target, hardware parameters, dialect.
_TaskKey: TypeAlias = tuple[str, str, "tuple[int, ...] | None", "str | None"]


class _Reader:
    """Makes records from rows, and counts rows that are not valid records."""

    def __init__(self) -> None:
        self.left_out = 0
        self._readers: dict[str, _PrimitiveReader] = {}  # by dialect

    def records(self, batch: pa.RecordBatch) -> Iterator[Record]:
        """Yield the records of a batch of `_COLUMNS`."""
        is_bounded = np.ones(len(batch), dtype=bool)
        for name, max_bytes in _MAX_BYTES.items():
            is_bounded &= value_bytes(batch.column(name)) <= max_bytes
        if not is_bounded.all():
            self.left_out += int(np.count_nonzero(~is_bounded))
            batch = batch.filter(pa.array(is_bounded))
        tasks: dict[_TaskKey, Task] = {}
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            try:
                yield self._record(row, tasks)
            except (ValueError, RecursionError, InvalidInput):
                self.left_out += 1

    def _record(self, row: tuple[Any, ...], tasks: dict[_TaskKey, Task]) -> Record:
        target, key, hardware, steps, costs, error_no, all_cost, timestamp, version, dialect = row
        of_task = (key, target, None if hardware is None else tuple(hardware), dialect)
        task = tasks.get(of_task)
        if task is None:
            task = tasks[of_task] = Task(*of_task[:3], dialect=dialect or DEFAULT)
        primitives = self._reader(task.dialect).read(steps)
        return Record(task, primitives, tuple(costs), error_no, all_cost, timestamp, version)

    def _reader(self, dialect: str) -> _PrimitiveReader:
        reader = self._readers.get(dialect)
        if reader is None:
            reader = self._readers[dialect] = _PrimitiveReader(dialect)
        return reader


class _PrimitiveReader:
    """Parses the JSON text of candidates of one dialect; a bounded cache holds the distinct primitives."""

    def __init__(self, dialect: str | None = None) -> None:
        self._dialect = find(dialect)
        self._known: BoundedCache[str, Primitive] = BoundedCache(_PRIMITIVES_BYTES)

    def read(self, text: str) -> tuple[Primitive, ...]:
        """Return the primitives of a candidate; raise `ValueError` or `InvalidInput` if the text is not valid."""
        if text == "[]":
            return ()
        # A primitive begins with its kind, a string. If a list inside a primitive is followed by another list that
        # begins with a string (no primitive of Ansor has this), the pieces are not valid JSON, and the text is parsed
        # as a whole.
        pieces = text[3:-2].split('],["')
        try:
            return tuple(map(self._known.__getitem__, pieces))
        except KeyError:
            pass
        try:
            return tuple(map(self._piece, pieces))
        except (ValueError, InvalidInput):  # the text has blanks of another program, or is invalid
            steps = json.loads(text)
            if not isinstance(steps, list):
                raise InvalidPrimitive("the primitives of a candidate are a list") from None
            return self._dialect.read_primitives(steps)

    def _piece(self, piece: str) -> Primitive:
        known = self._known.get(piece)
        if known is None:
            known = self._dialect.read_primitive(json.loads('["' + piece + "]"))
            self._known.add(piece, known, getsizeof(piece) + memory_of(known))
        return known
