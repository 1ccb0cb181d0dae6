"""Puts records into a record store, and reads them back in a form that tests can compare."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tlp_client.records import Record, RecordParser
from tlp_service.records.reader import stored_records
from tlp_service.records.schema import Rows, Texts
from tlp_service.records.store import RecordStore


def rows_of(lines: Sequence[str], platform: str = "epyc", marks: Sequence[str] | None = None):
    """Return the rows of records. Their ids are made from `marks`, or else from their lines."""
    rows, parser = Rows(platform, Texts()), RecordParser()
    for line, mark in zip(lines, marks or lines, strict=True):
        rows.add(parser.parse(line), mark.encode(), "worker:w", 1)
    return rows.table()


def shown(record: Record) -> tuple:
    """Return what a store keeps of a record."""
    task = record.task
    return (
        *(task.workload_key, task.target, task.hardware, record.primitives),
        *(record.costs, record.error_no, record.all_cost, float(record.timestamp), record.version),
    )


def stored(store: RecordStore, platform: str = "epyc") -> Counter:
    """Return the records of a platform, each with how often it is read."""
    return Counter(shown(record) for _, record in stored_records(store, [platform]))


def once(lines: Iterable[str]) -> Counter:
    """Return what `stored` returns if each of these records is read once."""
    return Counter(shown(RecordParser().parse(line)) for line in lines)
