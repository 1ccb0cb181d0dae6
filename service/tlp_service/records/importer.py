"""``tlp records import``: tuning logs into the record store."""

from __future__ import annotations

import gc
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeAlias

from tqdm import tqdm

from tlp_client.logs import LogReader, RefusedLine, source_of
from tlp_client.records import RecordParser
from tlp_service.records.parquet_files import write_rows
from tlp_service.records.platform_table import PlatformOf
from tlp_service.records.schema import Rows, Texts
from tlp_service.records.store import RecordStore

log = logging.getLogger(__name__)

#: Bytes of lines after which a process writes their rows, and number of batches of logs per process.
_MAX_HELD_BYTES, _BATCHES = 64 << 20, 16

#: logs, how to tell their platforms, and where their rows go
_Batch: TypeAlias = tuple[Sequence[Path], PlatformOf, Path]


@dataclass(slots=True)
class ImportSummary:
    """Counts of an import: records by platform, and rejected lines by cause.

    Parameters
    ----------
    files : int
        Number of logs.
    platforms : Counter
        Number of records read, by platform; some may be in the store already.
    failed : Counter
        Number of these records whose run failed or that have no valid cost, by platform.
    left_out : Counter
        Lines without a record or without a platform, by cause.
    refused : list of RefusedLine
        Lines that are not valid records.
    """

    files: int = 0
    platforms: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    refused: list[RefusedLine] = field(default_factory=list)

    def add(self, other: ImportSummary) -> None:
        """Add the counts of another summary."""
        self.files += other.files
        self.platforms += other.platforms
        self.failed += other.failed
        self.left_out += other.left_out
        self.refused += other.refused

    def add_refused(self, refused: Sequence[RefusedLine]) -> None:
        """Add refused lines."""
        self.refused += refused
        for line in refused:
            self.left_out[f"refused line, {line.cause}"] += line.lines

    def report(self, added: Mapping[str, int]) -> str:
        """Return the counts as text, with those that were new to the store."""
        lines = [f"{self.files} files, {sum(self.platforms.values())} records, {sum(added.values())} new"]
        lines += [
            f"  {platform:<24} {count:>8} records, {self.failed[platform]:>7} of failed runs, "
            f"{added.get(platform, 0):>8} new"
            for platform, count in sorted(self.platforms.items())
        ]
        lines += [f"  left out, {cause}: {count}" for cause, count in sorted(self.left_out.items())]
        return "\n".join(lines)


def import_logs(
    paths: Sequence[Path], store: RecordStore, platform_of: PlatformOf, processes: int = 0
) -> tuple[ImportSummary, dict[str, int]]:
    """Import logs into a record store; records that it already has are not added again.

    Parameters
    ----------
    paths : sequence of Path
        Log files, plain or gzip-compressed.
    store : RecordStore
        The record store to import into.
    platform_of : callable
        Returns the platform of a record; a record without one is left out.
    processes : int
        Number of reader processes; 0 for one per CPU.

    Returns
    -------
    summary : ImportSummary
        Counts of the import.
    added : dict
        Platform -> number of records that are new.
    """
    processes = processes or os.cpu_count() or 1
    summary = ImportSummary()
    with store.incoming() as folder:
        # Numbered in the order of the logs, so that of duplicates in two logs the first is kept, regardless of the
        # number of processes.
        batches = [
            (batch, platform_of, folder / f"{number:06}")
            for number, batch in enumerate(_divided(paths, _BATCHES * processes))
        ]
        with tqdm(total=len(paths), unit="file", disable=None) as bar:
            for part in _read_all(batches, processes):
                summary.add(part)
                bar.update(part.files)
        added = store.take_in(folder)
    store.quarantine(summary.refused, set(map(source_of, paths)))
    return summary, added


def _divided(paths: Sequence[Path], batches: int) -> Iterator[list[Path]]:
    """Divide logs into some batches of about equal size. Neighbours stay together, for they share primitives."""
    sizes = list(map(_size, paths))
    enough = sum(sizes) / batches
    batch: list[Path] = []
    filled = 0
    for path, size in zip(paths, sizes, strict=True):
        batch.append(path)
        filled += size
        if filled >= enough:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch


def _size(path: Path) -> int:
    """Return the size of a log; 0 if it is gone, which is reported when it is read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_all(batches: Sequence[_Batch], processes: int) -> Iterator[ImportSummary]:
    # The largest first, so that none is left for one process at the end.
    ordered = sorted(batches, key=lambda batch: -sum(map(_size, batch[0])))
    if processes == 1 or len(batches) == 1:
        yield from map(_read_batch, ordered)
        return
    # Records form no reference cycles, so garbage collection would traverse all of them in vain.
    with ProcessPoolExecutor(processes, initializer=gc.disable) as pool:
        yield from pool.map(_read_batch, ordered)


#: One per process, since logs share their primitives.
_PARSER, _TEXTS = RecordParser(), Texts()


def _read_batch(batch: _Batch) -> ImportSummary:
    paths, platform_of, prefix = batch
    summary = ImportSummary(files=len(paths))
    held: dict[str, Rows] = {}
    numbers = count()

    held_bytes = 0

    def write() -> None:
        nonlocal held_bytes
        for platform in list(held):
            write_rows(held.pop(platform).table(), Path(f"{prefix}-{next(numbers):06}.arrow"))
        held_bytes = 0

    for path in paths:
        platform_of_record, source = platform_of(path), source_of(path)
        reader = LogReader(_PARSER)
        for line, number, record in reader.read_file_lines(path):
            platform = platform_of_record(record)
            if platform is None:
                summary.left_out["no platform"] += 1
                continue
            summary.platforms[platform] += 1
            summary.failed[platform] += not record.is_valid
            if platform not in held:
                held[platform] = Rows(platform, _TEXTS)
            held[platform].add(record, line, source, number)
            held_bytes += len(line)
            if held_bytes >= _MAX_HELD_BYTES:
                write()
        summary.add_refused(reader.refused)
    write()
    return summary
