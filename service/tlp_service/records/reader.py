"""From rows of the record store back to records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tlp_client.primitives import Primitive, read_primitive
from tlp_client.records import Record
from tlp_client.tasks import Task, canonical_workload_key
from tlp_service.records.split import Part, part_of
from tlp_service.records.store import RecordStore

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
)

#: Rows that are turned into Python objects at a time.
_BATCH_ROWS = 10_000


def stored_records(
    store: RecordStore, platforms: Sequence[str] | None = None, most: int | None = None
) -> Iterator[tuple[str, Record]]:
    """Yield ``(platform, record)`` for all records of a store, or of some platforms, failed runs, too.

    Of a platform with more than `most` records these are a mix: half came last, half are drawn from all before.
    """
    reader = _PrimitiveReader()
    for platform in platforms if platforms is not None else store.platforms:
        rows = store.read(platform, _COLUMNS)
        if most is not None and len(rows) > most:
            older, drawn = len(rows) - most // 2, most - most // 2
            places = np.sort(np.random.default_rng(0).permutation(older)[:drawn])
            rows = rows.take(np.concatenate([places, np.arange(older, len(rows))]))
        for batch in rows.to_batches(_BATCH_ROWS):
            for record in _records(batch, reader):
                yield platform, record


def stored_sources(store: RecordStore) -> Iterator[tuple[str, str]]:
    """Yield workload and log of the records of a store, each pair once a platform."""
    for platform in store.platforms:
        table = store.read(platform, ("workload_key", "source"))
        for row in table.group_by(["workload_key", "source"]).aggregate([]).to_pylist():
            yield canonical_workload_key(row["workload_key"]), row["source"]


def _records(batch: pa.RecordBatch, reader: _PrimitiveReader) -> Iterator[Record]:
    tasks: dict[tuple[str, str, tuple[int, ...] | None], Task] = {}
    for target, key, hardware, primitives, costs, error_no, all_cost, timestamp, version in zip(
        *(column.to_pylist() for column in batch.columns), strict=True
    ):
        of_task = (key, target, None if hardware is None else tuple(hardware))
        task = tasks.get(of_task)
        if task is None:
            task = tasks[of_task] = Task(*of_task)
        yield Record(task, reader.read(primitives), tuple(costs), error_no, all_cost, timestamp, version)


class _PrimitiveReader:
    """Reads the JSON text of candidates; each distinct primitive is parsed once and is one object."""

    def __init__(self) -> None:
        self._known: dict[str, Primitive] = {}

    def read(self, text: str) -> tuple[Primitive, ...]:
        if text == "[]":
            return ()
        # A primitive begins with its kind, a string, and none has a list that is followed by one that does so.
        pieces = text[3:-2].split('],["')
        try:
            return tuple(map(self._known.__getitem__, pieces))
        except KeyError:
            return tuple(map(self._piece, pieces))

    def _piece(self, piece: str) -> Primitive:
        known = self._known.get(piece)
        if known is None:
            known = self._known[piece] = read_primitive(json.loads('["' + piece + "]"))
        return known


def part_of_store(store: RecordStore, part: Part) -> Iterator[tuple[str, Record]]:
    """Yield the records of a store whose workload is in a part of its split."""
    for platform, record in stored_records(store):
        if part_of(record.task.workload, store.seed) == part:
            yield platform, record
