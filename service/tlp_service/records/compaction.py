"""Merges files of a platform into one, and chooses which."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from tlp_service.records.parquet_files import is_first, sync, write_file
from tlp_service.records.platform_folder import RECORDS, PlatformFolder, filtered
from tlp_service.records.schema import SCHEMA
from tlp_service.records.stored_file import MAX_STEP_ROWS, StoredFile


def merge(
    folder: PlatformFolder,
    choose: Callable[[list[StoredFile]], list[StoredFile]],
    parts: Sequence[pa.Table],
    aside: Path,
) -> int:
    """Merge some files of a platform and further rows into one file, in steps of bounded memory.

    Parameters
    ----------
    folder : PlatformFolder
        Folder of the platform; the caller holds the store's lock.
    choose : callable
        Gets the readable files, and returns those to merge.
    parts : sequence of pa.Table
        Further rows, of `SCHEMA`.
    aside : Path
        Where the new file is written before it is renamed.

    Returns
    -------
    int
        Number of further rows that are new.

    Raises
    ------
    DamagedRecords
        If a file is damaged. Nothing has been changed then.
    """
    with folder.opened() as opened:
        files = choose(opened)
        if not files and not parts:
            return 0
        paths = [file.path for file in files]
        schema = pa.schema([SCHEMA.field("id")])
        known = [pa.Table.from_batches(file.batches(["id"]), schema) for file in files]
        ids = pa.concat_tables([*known, *(part.select(["id"]) for part in parts)]).column(0)
        is_new = np.asarray(is_first(ids))
        rows = chain(
            chain.from_iterable(file.batches(SCHEMA.names) for file in files),
            chain.from_iterable(part.to_batches(MAX_STEP_ROWS) for part in parts),
        )
        write_file(filtered(rows, is_new), aside)
    _replace(folder, paths, aside)
    return int(is_new[sum(map(len, known)) :].sum())


def _replace(folder: PlatformFolder, paths: list[Path], aside: Path) -> None:
    """Put a new file in the place of those that were merged into it."""
    # Files that cannot be read, or were not chosen, stay.
    is_all = paths == folder.files()
    place = folder.path / RECORDS if is_all else paths[0] if paths else new_part(folder.path)
    os.replace(aside, place)
    sync(place.parent)
    for path in paths:
        if path != place:
            path.unlink()


def newest(files: list[StoredFile], min_files: int) -> list[StoredFile]:
    """Return the newest files to merge: size-tiered compaction.

    These are at least `min_files`, extended until the next older file holds more rows than all of them. So a row is
    rewritten about once per doubling of the number of rows after its arrival, not with every few new files.
    """
    found: list[StoredFile] = []
    rows = 0
    for file in reversed(files):
        if len(found) >= min_files and file.rows > rows:
            break
        found.insert(0, file)
        rows += file.rows
    return found


def new_part(folder: Path) -> Path:
    """Return the path of a new file, which sorts after all existing ones."""
    return folder / f"part-{time.time_ns():020}-{secrets.token_hex(4)}.parquet"
