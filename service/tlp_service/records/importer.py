"""``tlp records import``: tuning logs into the record store."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
from tqdm import tqdm

from tlp_client.logs import LogReader, RefusedLine, open_log
from tlp_client.records import Record, RecordParser
from tlp_service.records.platforms import PlatformOf
from tlp_service.records.schema import Rows, Texts
from tlp_service.records.store import RecordStore

log = logging.getLogger(__name__)

#: Rows that are held before they are written.
_HELD_ROWS = 50_000


@dataclass(slots=True)
class ImportSummary:
    """What became of the lines that were read.

    Parameters
    ----------
    files : int
        Logs.
    platforms : Counter
        Records read, by platform; some may turn out to be in the store already.
    failed : Counter
        Of these, records of runs that failed or whose costs are none, by platform.
    left_out : Counter
        Lines without a record or without a platform, by cause.
    refused : list of RefusedLine
        The lines that are no records.
    """

    files: int = 0
    platforms: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    refused: list[RefusedLine] = field(default_factory=list)

    def add(self, other: ImportSummary) -> None:
        """Add what another one counted."""
        self.files += other.files
        self.platforms += other.platforms
        self.failed += other.failed
        self.left_out += other.left_out
        self.refused += other.refused

    def report(self, added: Mapping[str, int]) -> str:
        """Return the counts as text, with those that were new to the store."""
        lines = [f"{self.files} files, {sum(self.platforms.values())} records, {sum(added.values())} new"]
        lines += [
            f"  {platform:<24} {count:>8} records, {self.failed[platform]:>7} of failed runs, {added.get(platform, 0):>8} new"
            for platform, count in sorted(self.platforms.items())
        ]
        lines += [f"  left out, {cause}: {count}" for cause, count in sorted(self.left_out.items())]
        return "\n".join(lines)


def import_logs(
    paths: Sequence[Path], store: RecordStore, platform_of: PlatformOf, processes: int = 0
) -> tuple[ImportSummary, dict[str, int]]:
    """Read logs into a record store; what is there already is not added again.

    Parameters
    ----------
    paths : sequence of Path
        Log files, plain or gzip-compressed.
    store : RecordStore
        Where to.
    platform_of : callable
        Tells the platform of a record; a record without one is left out.
    processes : int
        That read; 0 for the CPUs.

    Returns
    -------
    summary : ImportSummary
        What was read.
    added : dict
        Platform -> records that are new.
    """
    processes = processes or os.cpu_count() or 1
    summary = ImportSummary()
    with store.incoming() as folder:
        tasks = [(path, platform_of, folder / f"{number}") for number, path in enumerate(paths)]
        for part in tqdm(_read_all(tasks, processes), total=len(tasks), unit="file", disable=None):
            summary.add(part)
        added = store.take_in(folder)
    store.quarantine(summary.refused)
    return summary, added


def _read_all(tasks: Sequence[tuple[Path, PlatformOf, Path]], processes: int) -> Iterator[ImportSummary]:
    # The largest first, so that none is left for one process at the end.
    ordered = sorted(tasks, key=lambda task: -task[0].stat().st_size)
    if processes == 1 or len(tasks) == 1:
        yield from map(_read_one, ordered)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(_read_one, ordered)


#: one a process: logs share their primitives
_PARSER, _TEXTS = RecordParser(), Texts()


def _read_one(task: tuple[Path, PlatformOf, Path]) -> ImportSummary:
    path, platform_of, prefix = task
    summary = ImportSummary(files=1)
    platform_of_record = platform_of(path)
    rows: dict[str, Rows] = {}
    written = 0
    for line, number, record in _records(path, summary):
        platform = platform_of_record(record)
        if platform is None:
            summary.left_out["no platform"] += 1
            continue
        summary.platforms[platform] += 1
        summary.failed[platform] += not record.is_valid
        of_platform = rows.setdefault(platform, Rows(platform, _TEXTS))
        of_platform.add(record, line, str(path), number)
        if len(of_platform) >= _HELD_ROWS:
            _write(rows.pop(platform), prefix, written)
            written += 1
    for of_platform in rows.values():
        _write(of_platform, prefix, written)
        written += 1
    return summary


def _records(path: Path, summary: ImportSummary) -> Iterator[tuple[bytes, int, Record]]:
    reader = LogReader(_PARSER)
    latest = b""

    def lines(file: Iterable[bytes]) -> Iterator[bytes]:
        nonlocal latest
        for raw in file:
            latest = raw
            yield raw

    with open_log(path) as file:
        for number, outcome in reader.read_lines(lines(file), str(path)):
            if isinstance(outcome, Record):
                yield latest, number, outcome
    summary.refused += reader.refused
    summary.left_out.update(f"refused line, {refused.cause}" for refused in reader.refused)


def _write(rows: Rows, prefix: Path, number: int) -> None:
    # Read once and removed: compression would only take time.
    pq.write_table(rows.table(), f"{prefix}-{number}.parquet", compression="none")
