"""One row of the record store."""

from __future__ import annotations

import hashlib
import json
from codecs import BOM_UTF8
from collections.abc import Sequence
from itertools import chain
from sys import getsizeof
from typing import Any

import numpy as np
import pyarrow as pa

from tlp_client.bounded import BoundedCache, memory_of
from tlp_client.dialects.registry import stated_name
from tlp_client.primitives import Primitive
from tlp_client.records import Record

#: `primitives` is the JSON text of the steps as in the log. `costs` are seconds, meaningless if `error_no` is not 0.
#: `dialect` is null for the default dialect.
#: A nullable column may be missing in a file, and then reads as nulls. So a new column needs one line here, nullable
#: and at the end, and no migration of stores; `Rows` writes nulls until it has values for the column.
SCHEMA = pa.schema(
    [
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("platform", pa.string(), nullable=False),
        pa.field("target", pa.string(), nullable=False),
        pa.field("workload_key", pa.string(), nullable=False),
        pa.field("hardware", pa.list_(pa.int64())),
        pa.field("primitives", pa.string(), nullable=False),
        pa.field("costs", pa.list_(pa.float64()), nullable=False),
        pa.field("error_no", pa.int8(), nullable=False),
        pa.field("all_cost", pa.float64(), nullable=False),
        pa.field("timestamp", pa.float64(), nullable=False),
        pa.field("log_version", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("line", pa.int32(), nullable=False),
        pa.field("dialect", pa.string()),
    ]
)

#: Columns with few distinct values, for Parquet's dictionary encoding; it would be wasted on the other columns.
REPEATED = ["platform", "target", "workload_key", "log_version", "source", "dialect"]


#: Bytes of the primitives and texts that are remembered.
_TEXTS_BYTES = 64 << 20


class Texts:
    """Caches the JSON text of primitives; one `RecordParser` returns few distinct objects.

    Parameters
    ----------
    max_bytes : int
        Bytes of the primitives and texts that are remembered.
    """

    def __init__(self, max_bytes: int = _TEXTS_BYTES) -> None:
        # The key is the object's identity, since hashing a primitive takes longer than all other steps.
        # Each entry keeps its primitive alive, so that no other object gets its id.
        self._known: BoundedCache[int, tuple[Primitive, str]] = BoundedCache(max_bytes)

    def of(self, primitives: Sequence[Primitive]) -> str:
        """Return a candidate's primitives as JSON."""
        known = self._known
        try:
            texts = [known[id(p)][1] for p in primitives]
        except KeyError:
            texts = [self._text(p) for p in primitives]
        return f"[{','.join(texts)}]"

    def _text(self, primitive: Primitive) -> str:
        known = self._known.get(id(primitive))
        if known is None:
            known = primitive, json.dumps(primitive.to_json(), separators=(",", ":"))
            nbytes = getsizeof(known) + getsizeof(known[1]) + memory_of(primitive)
            self._known.add(id(primitive), known, nbytes)
        return known[1]


class Rows:
    """Collects rows of one platform for a table.

    Parameters
    ----------
    platform : str
        Platform of the rows.
    texts : Texts
        Cache of the texts of primitives.
    """

    def __init__(self, platform: str, texts: Texts) -> None:
        self._platform = platform
        self._texts = texts
        self._hash = hashlib.blake2b(digest_size=16, key=platform.encode()[:64])
        self._rows: list[tuple[object, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, record: Record, line: bytes, source: str, number: int) -> None:
        """Add a record that stands on a line of a log."""
        task = record.task
        row = (
            self._id(line, task.dialect),
            self._platform,
            task.target,
            task.workload_key,
            task.hardware,
            self._texts.of(record.primitives),
            record.costs,
            record.error_no,
            record.all_cost,
            record.timestamp,
            record.version,
            source,
            number,
            stated_name(task.dialect),
        )
        self._rows.append(row)

    def table(self) -> pa.Table:
        """Return the rows, one or more."""
        columns = list(zip(*self._rows, strict=True))
        arrays = [_array(column, field.type) for field, column in zip(SCHEMA, columns, strict=False)]
        arrays += [
            pa.nulls(len(self), SCHEMA.field(place).type) for place in range(len(columns), len(SCHEMA))
        ]
        return pa.table(arrays, schema=SCHEMA)

    def _id(self, line: bytes, dialect: str) -> bytes:
        """Return the id of a record, a hash of its dialect, platform and line, so duplicates have the same id."""
        hashed = self._hash.copy()
        if (stated := stated_name(dialect)) is not None:
            hashed.update(f"{stated}\n".encode())
        hashed.update(line.removeprefix(BOM_UTF8).strip())
        return hashed.digest()


def _array(column: Sequence[Any], type_: pa.DataType) -> pa.Array:
    # By way of numpy, for Arrow takes no integer that a float cannot hold.
    if type_ == pa.float64():
        return pa.array(np.array(column, dtype=np.float64))
    if type_ == pa.list_(pa.float64()):
        ends = np.cumsum([0, *map(len, column)], dtype=np.int32)
        return pa.ListArray.from_arrays(ends, np.fromiter(chain.from_iterable(column), np.float64))
    return pa.array(column, type_)
