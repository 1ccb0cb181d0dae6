"""One row of the record store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import pyarrow as pa

from tlp_client.primitives import Primitive
from tlp_client.records import Record

#: `primitives` is the JSON text of the steps, as it stands in the log; `costs` are seconds, and mean nothing where `error_no` is not 0.
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
    ]
)


def content_id(platform: str, line: bytes) -> bytes:
    """Return the id of a record: the same line on the same platform is the same measurement, wherever it stands."""
    return hashlib.blake2b(line.strip(), digest_size=16, key=platform.encode()[:64]).digest()


class Texts:
    """The JSON text of primitives, made once for each object: those of one `RecordParser` are few."""

    def __init__(self) -> None:
        # By identity, for hashing a primitive takes longer than all else. The object is kept, so that no other gets its id.
        self._known: dict[int, str] = {}
        self._kept: list[Primitive] = []

    def of(self, primitives: Sequence[Primitive]) -> str:
        """Return a candidate's primitives as JSON."""
        try:
            texts = list(map(self._known.__getitem__, map(id, primitives)))
        except KeyError:
            texts = [self._known.get(id(p)) or self._learn(p) for p in primitives]
        return f"[{','.join(texts)}]"

    def _learn(self, primitive: Primitive) -> str:
        text = self._known[id(primitive)] = json.dumps(primitive.to_json(), separators=(",", ":"))
        self._kept.append(primitive)
        return text


class Rows:
    """Rows of one platform on their way into a table, column by column."""

    def __init__(self, platform: str, texts: Texts) -> None:
        self._platform = platform
        self._texts = texts
        self._columns: dict[str, list[object]] = {name: [] for name in SCHEMA.names if name != "platform"}

    def __len__(self) -> int:
        return len(self._columns["id"])

    def add(self, record: Record, line: bytes, source: str, number: int) -> None:
        """Add a record that stands on a line of a log."""
        task = record.task
        values: Sequence[object] = (
            content_id(self._platform, line),
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
        )
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def table(self) -> pa.Table:
        """Return the rows."""
        columns = self._columns | {"platform": [self._platform] * len(self)}
        return pa.table([pa.array(columns[f.name], f.type) for f in SCHEMA], schema=SCHEMA)
