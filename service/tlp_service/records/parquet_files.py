"""Files of a record store: Parquet files that may be damaged, and what is written so that a crash leaves all of it or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tlp_service.errors import DamagedRecords
from tlp_service.records.schema import REPEATED


def read_file(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a file that may be replaced meanwhile, or some columns of it.

    Opened once, it stays what it was; `read_table` opens it again for each part.

    Raises
    ------
    DamagedRecords
        If what it holds cannot be read.
    """
    with _named(path), pq.ParquetFile(path) as file:
        if columns is None:
            return file.read()
        return file.read(columns=list(columns)).select(list(columns))  # in this order, not that of the file


def rows_of(path: Path) -> int:
    """Return the number of rows of a file, which its footer says.

    Raises
    ------
    DamagedRecords
        If that cannot be read.
    """
    with _named(path):
        return int(pq.read_metadata(path).num_rows)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Say of which file it is that what it holds cannot be read."""
    try:
        yield
    except (pa.ArrowMemoryError, pa.ArrowCancelled):
        raise  # of this process
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk; what a file holds has no number
        raise DamagedRecords(f"{path} is damaged: {error}") from None


def write_file(rows: pa.Table, path: Path) -> None:
    """Write rows, and wait until they are on disk."""
    pq.write_table(rows, path, compression="zstd", row_group_size=20_000, use_dictionary=REPEATED)
    sync(path)


def is_first(ids: pa.ChunkedArray) -> pa.Array:
    """Return for each place whether its id stands there for the first time."""
    # Codes are given in order of appearance.
    codes = ids.combine_chunks().dictionary_encode().indices.to_numpy()
    return pa.array(np.diff(np.maximum.accumulate(codes), prepend=-1) > 0)


def write_rows(rows: pa.Table, path: Path) -> None:
    """Write rows of one platform for `RecordStore.take_in`: as they lie in memory, for they are read once and removed."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)


def replace_file(path: Path, contents: bytes) -> None:
    """Put a small file in place of another, as a whole."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(contents)
    sync(aside)
    os.replace(aside, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk: what is in the store is deleted elsewhere."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
