"""Reads a Parquet file of a record store, which may be truncated or rewritten by another program."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tlp_service.errors import DamagedRecords
from tlp_service.records.schema import SCHEMA

#: Maximum bytes in memory and rows of one step of reading or writing. A larger single row is a step of its own.
MAX_STEP_BYTES, MAX_STEP_ROWS = 16 << 20, 10_000
#: Bytes of a column that are read from disk at a time.
_READ_BYTES = 1 << 18
#: The types that hold texts, and those that hold lists.
_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)
_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


class StoredFile:
    """A file of a record store, opened for reading. It stays readable if another file replaces it.

    Columns are found by name and cast to the types of `SCHEMA`, so files of other programs can be read, too:
    columns may be in any order, and there may be others. A missing nullable column reads as nulls. `platform`
    is never read from the file, since the name of the folder decides it.

    Parameters
    ----------
    path : Path
        The file.
    platform : str
        Platform of the rows.
    schema : pa.Schema
        Schema of the rows.

    Raises
    ------
    DamagedRecords
        If it is not a Parquet file, lacks a required column, or has one that cannot be cast.
    OSError
        If the disk or permissions keep it from being read.
    """

    def __init__(self, path: Path, platform: str, schema: pa.Schema = SCHEMA) -> None:
        self.path = path
        self._platform = platform
        self._schema = schema
        with _damage_of(path):
            _check_is_file(path)
            source = pa.OSFile(str(path))
            footer = pq.ParquetFile(source).metadata
            self._file = pq.ParquetFile(
                source,
                metadata=footer,
                read_dictionary=_text_columns(footer),
                buffer_size=_READ_BYTES,
                pre_buffer=False,
                page_checksum_verification=True,
            )
            self._source = source
            self._check_footer()

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    @property
    def rows(self) -> int:
        """Number of rows according to the footer."""
        return int(self._file.metadata.num_rows)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield some columns of all rows in order, in steps of at most `MAX_STEP_BYTES`.

        Raises
        ------
        DamagedRecords
            If the next step cannot be read.
        """
        # Outside of `_damage_of`, since an unknown column is a fault of the caller.
        fields = [self._schema.field(name) for name in columns]
        names = self._file.schema_arrow.names
        stored = [name for name in columns if name in names and name != "platform"] or ["id"]
        with _damage_of(self.path):
            for number in range(self._file.num_row_groups):
                rows = 0
                for batch in self._file.iter_batches(self._step_rows(number), [number], stored):
                    rows += len(batch)
                    for piece in in_steps(batch):
                        yield self._conformed(piece, fields)
                if rows != self._file.metadata.row_group(number).num_rows:
                    raise pa.ArrowInvalid(f"row group {number} has {rows} rows, which contradicts the footer")

    def check(self) -> None:
        """Read the whole file.

        Raises
        ------
        DamagedRecords
            If a part of it cannot be read.
        """
        for _ in self.batches(self._schema.names):
            pass

    def _check_footer(self) -> None:
        footer, found = self._file.metadata, self._file.schema_arrow
        rows = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        if min(rows, default=0) < 0 or sum(rows) != footer.num_rows:
            raise pa.ArrowInvalid("its footer states contradictory numbers of rows")
        for field in self._schema:
            count = found.names.count(field.name)
            if count > 1:
                raise pa.ArrowInvalid(f"it has {count} columns '{field.name}', expected one")
            if count == 0 and not field.nullable and field.name != "platform":
                raise pa.ArrowInvalid(f"it lacks the column '{field.name}'")
            type_ = found.field(field.name).type if count else field.type
            if type_ != field.type:
                _cast(pa.array([], type_), field)

    def _step_rows(self, number: int) -> int:
        """Return how many rows of a row group to decode at a time."""
        group = self._file.metadata.row_group(number)
        rows = MAX_STEP_BYTES * group.num_rows // max(group.total_byte_size, 1)
        return int(min(max(rows, 1), MAX_STEP_ROWS))

    def _conformed(self, batch: pa.RecordBatch, fields: list[pa.Field]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([self._column(batch, f) for f in fields], schema=pa.schema(fields))

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name == "platform":
            return pa.array([self._platform] * len(batch), field.type)
        if field.name not in batch.schema.names:
            return pa.nulls(len(batch), field.type)
        return _cast(batch.column(field.name), field)


def in_steps(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in slices of at most `MAX_STEP_BYTES` in memory, or of one row."""
    ends = np.cumsum(sum(map(value_bytes, batch.columns), np.zeros(len(batch), np.int64)))
    start, taken = 0, 0
    while start < len(batch):
        end = max(start + 1, int(np.searchsorted(ends, taken + MAX_STEP_BYTES, side="right")))
        yield batch.slice(start, end - start)
        start, taken = end, ends[end - 1]


def value_bytes(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the bytes of each value of a column in memory; a value of a dictionary counts at each occurrence."""
    if pa.types.is_dictionary(column.type):
        of_values = np.append(value_bytes(column.dictionary), 0)  # the last element is that of null
        places = column.indices.cast(pa.int64()).fill_null(len(of_values) - 1)
        return np.asarray(of_values[np.asarray(places)], np.int64)
    if _is_list(column.type):
        found = pc.multiply(pc.list_value_length(column), 8)
    elif _is_text(column.type):
        is_view = pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type)
        found = pc.binary_length(column.cast(pa.large_binary()) if is_view else column)
    else:
        return np.full(len(column), 16, np.int64)
    return np.asarray(found.fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    """Cast a column to the type of a field; raise `pa.ArrowInvalid` if a value would change or is missing."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    found = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    try:
        # Arrow would convert between numbers and texts.
        if _is_text(found) != _is_text(field.type) and not pa.types.is_null(found):
            raise pa.ArrowInvalid("text and numbers are not converted")
        if column.type != field.type:
            column = column.cast(field.type)
        column.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise pa.ArrowInvalid(
            f"column '{field.name}': expected {field.type}, found {found}: {reason}"
        ) from None
    nulls = 0 if field.nullable else column.null_count
    if nulls + (column.flatten().null_count if _is_list(column.type) else 0):
        raise pa.ArrowInvalid(f"column '{field.name}': expected values, found nulls")
    return column


def _is_text(type_: pa.DataType) -> bool:
    return any(is_one(type_) for is_one in _TEXTS)


def _is_list(type_: pa.DataType) -> bool:
    return any(is_one(type_) for is_one in _LISTS)


def _text_columns(footer: pq.FileMetaData) -> list[str]:
    """Return the columns of texts. Read as dictionaries, a repeated long text is in memory once, however it is stored.

    The metadata of column chunks is not read to find out how they are stored: if it is damaged, pyarrow does not catch
    the C++ exception, and the process aborts. The reader of the data checks the same and raises.
    """
    names = set(footer.schema.names)
    return [field.name for field in SCHEMA if field.name in names and _is_text(field.type)]


def _check_is_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise pa.ArrowInvalid("it is a broken link") from None
        raise
    if not stat.S_ISREG(mode):  # reading a pipe could block for ever
        raise pa.ArrowInvalid("it is not a regular file")


@contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    """Raise `DamagedRecords` with the path for errors in the content of a file."""
    try:
        yield
    except (pa.ArrowMemoryError, pa.ArrowCancelled):
        raise  # not the fault of the file
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk; errors in the content have no errno
        raise DamagedRecords(path, " ".join(str(error).split())) from None
