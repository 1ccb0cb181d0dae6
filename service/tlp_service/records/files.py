"""Log files, and the records in them with their platforms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tlp_client.logs import LOG_SUFFIXES, LogReader, RefusedLine
from tlp_client.records import Record, RecordParser
from tlp_service.errors import BadRecords
from tlp_service.records.platform_table import PlatformOf
from tlp_service.records.store_path import is_store


def log_files(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the log files named, or found below `paths` by their ending (`LOG_SUFFIXES`), sorted.

    Raises
    ------
    BadRecords
        If a path does not exist, or is a record store, whose records are in no log.
    """
    for path in paths:
        if not path.exists():
            raise BadRecords(f"no such file or directory: {path}")
        if is_store(path):
            raise BadRecords(f"{path}: expected tuning logs, got a record store; name a store by itself")
        if path.is_file():
            yield path
            continue
        for found in sorted(path.rglob("*")):
            if found.is_file() and found.name.endswith(LOG_SUFFIXES):
                yield found


def log_records(
    paths: Iterable[Path], platform_of: PlatformOf, refused: list[RefusedLine]
) -> Iterator[tuple[str | None, Record]]:
    """Yield ``(platform, record)`` for the records of logs, failed runs, too; None where nobody knows the platform.

    Parameters
    ----------
    refused : list of RefusedLine
        Gets the lines that are no records.
    """
    parser = RecordParser()
    for path in paths:
        reader = LogReader(parser, refused)
        platform_of_record = platform_of(path)
        for record in reader.read_file(path):
            yield platform_of_record(record), record
