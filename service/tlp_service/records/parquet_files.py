"""Writes the files of a record store, so that a crash leaves a complete file or none."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tlp_service.records.schema import REPEATED, SCHEMA
from tlp_service.records.stored_file import in_steps

#: Rows and bytes in memory at which a row group is complete. A reader needs memory for its largest page.
_GROUP_ROWS, _MAX_GROUP_BYTES = 20_000, 64 << 20


def write_file(batches: Iterable[pa.RecordBatch], path: Path) -> None:
    """Write rows of `SCHEMA`, and wait until they are on disk. At most one row group is in memory at a time."""
    with pq.ParquetWriter(
        path, SCHEMA, compression="zstd", use_dictionary=REPEATED, write_page_checksum=True
    ) as writer:
        held: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in chain.from_iterable(map(in_steps, batches)):
            held.append(batch)
            rows, size = rows + len(batch), size + batch.nbytes
            if rows >= _GROUP_ROWS or size >= _MAX_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(held))
                held.clear()
                rows = size = 0
        if held:
            writer.write_table(pa.Table.from_batches(held))
    sync(path)


def is_first(ids: pa.ChunkedArray) -> pa.Array:
    """Return for each position whether its id occurs there for the first time."""
    # Codes are given in order of appearance.
    codes = ids.combine_chunks().dictionary_encode().indices.to_numpy()
    return pa.array(np.diff(np.maximum.accumulate(codes), prepend=-1) > 0)


def write_rows(rows: pa.Table, path: Path) -> None:
    """Write rows of one platform for `RecordStore.take_in` in Arrow's memory format, since they are read only once."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)


def replace_file(path: Path, contents: bytes) -> None:
    """Replace a small file atomically."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(contents)
    sync(aside)
    os.replace(aside, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Sync a file or a folder's entries to disk, since records in the store are deleted from the stream."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
