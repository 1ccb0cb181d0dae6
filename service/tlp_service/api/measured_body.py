"""Reads the body of a measurement request into entries for the stream, in steps.

Between two steps, other requests get their turn, and a request whose client has left is dropped. At these
points a request therefore holds only memory that `Reservation` counts: the body, and the entries made from it
so far.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any

import msgspec

from tlp_client.dialects.registry import read_dialect, stated_name
from tlp_client.errors import InvalidRequest
from tlp_client.logs import RefusedLine
from tlp_client.records import Record, read_record
from tlp_client.tasks import platform_kind
from tlp_client.wire.measurements import Measurement, MeasurementReader, check_measured, measurement_id
from tlp_service.api.answers import MalformedBody
from tlp_service.api.body import check_count, decode_json
from tlp_service.api.decoded import DecodeMemory, decoded_bytes, let_go
from tlp_service.api.head import NDJSON
from tlp_service.api.predict import FAULT_BYTES
from tlp_service.api.request_memory import Reservation
from tlp_service.api.tuning_log import LineOutcome, lines_in_steps
from tlp_service.errors import InvalidBody
from tlp_service.measurements.lines import RecordLines
from tlp_service.measurements.stream import Entry
from tlp_service.scheduling.steps import Steps
from tlp_service.versions.choice import contradiction
from tlp_service.versions.manifest import Manifest

#: Field name in a body that precedes each record; its count bounds the number of records.
_RECORD = b'"record"'
#: Maximum bytes of an id in a body. A longer one cannot be a name, even if all its characters are escaped.
_MAX_ID_BYTES = 1024
#: Bytes of the records of one step, and units of work (see `tlp_service.scheduling.steps`) of each of these
#: bytes and of each record. Bytes of new primitives take the longest.
_STEP_BYTES, _BYTE_COST, _RECORD_COST = 8 << 10, 8, 750
#: Bytes of an entry of a body before it is read, and of one for the stream beside its texts.
_UNREAD_BYTES, _ENTRY_BYTES = 160, 256
#: Granularity in bytes with which the memory of a request is counted.
_COUNTED_BYTES = 64 << 10


class _Unread(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of a body whose fields are still JSON text."""

    id: msgspec.Raw
    record: msgspec.Raw


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRIES = msgspec.json.Decoder(list[_Unread])

#: Parsers of record lines by dialect, shared by all requests.
_lines: dict[str, RecordLines] = {}


@dataclass(frozen=True, slots=True)
class CheckedRecords:
    """The checked records of a request, ready to be appended to the stream.

    Parameters
    ----------
    entries : list of Entry
        Entries to append.
    are_valid : list of bool
        Whether each entry's run succeeded.
    errors : list of (int, str)
        Position in the request and error of each refused record.
    """

    entries: list[Entry]
    are_valid: list[bool]
    errors: list[tuple[int, str]]


def prepare_in_steps(
    memory: Reservation,
    limit: int,
    manifest: Manifest,
    kind: str,
    body: bytes,
    query: dict[str, str | None],
) -> Steps[CheckedRecords]:
    """Convert a body to entries for the stream, in steps of bounded time.

    Parameters
    ----------
    memory : Reservation
        The memory of the request, in which the body is counted already.
    limit : int
        Maximum number of records of a request.
    manifest : Manifest
        Manifest of the serving version. It determines which platforms contradict which targets.
    kind : str
        Media type of the body.
    query : dict
        ``worker``, ``platform``, ``version`` and ``dialect`` of a log.

    Raises
    ------
    RequestFault, InvalidRequest
        If the body as a whole is refused.
    """
    with let_go():
        if kind == NDJSON:
            return (yield from _read_log(memory, limit, manifest, body, query))
        return (yield from _read_json(memory, limit, manifest, body))


class _Taken:
    """Collects the entries made from the records of one request."""

    def __init__(
        self,
        memory: Reservation,
        manifest: Manifest,
        worker: str,
        platform: str | None,
        version: str | None,
        dialect: str,
    ) -> None:
        self.prepared = CheckedRecords([], [], [])
        self.contradictions: list[tuple[int, str, str]] = []  # position, id, message
        self._memory, self._manifest = memory, manifest
        self._worker, self._platform, self._version = worker, platform, version or ""
        self._lines, self._dialect = _lines_of(dialect), stated_name(dialect) or ""
        self._nbytes = self._counted = 0

    def add(self, measurements: Iterable[Measurement]) -> None:
        """Add the entries of some measurements."""
        for measurement in measurements:
            target = measurement.record.task.target
            platform = self._platform or platform_kind(target)
            message = contradiction(self._manifest, platform, target)
            if platform is None:
                message = f"neither 'platform' nor the target {target!r:.80} tells the platform"
            if message is not None or platform is None:
                self.contradictions.append((measurement.position, measurement.id, message or ""))
                continue
            line = self._lines.line(measurement.record)
            self._nbytes += getsizeof(line) + getsizeof(measurement.id) + _ENTRY_BYTES
            entry = Entry(measurement.id, line, self._worker, platform, self._version, self._dialect)
            self.prepared.entries.append(entry)
            self.prepared.are_valid.append(measurement.record.is_valid)

    def errors(self) -> list[tuple[int, str]]:
        """Return position and fault of each record whose platform and target contradict each other."""
        return [(position, f"id {id_!r}: {message}") for position, id_, message in self.contradictions]

    def count(self, errors: int) -> None:
        """Count the memory of the entries and of this many errors.

        Raises
        ------
        QueueFull
            If other requests leave no memory for them.
        """
        more = self._nbytes + FAULT_BYTES * (errors + len(self.contradictions)) - self._counted
        if more >= _COUNTED_BYTES:
            self._memory.need(more)
            self._counted += more


def _read_log(
    memory: Reservation, limit: int, manifest: Manifest, body: bytes, query: dict[str, str | None]
) -> Steps[CheckedRecords]:
    platform = query["platform"]
    dialect = read_dialect(query.get("dialect"), "query parameter dialect")
    taken = _Taken(memory, manifest, query["worker"] or "upload", platform, query["version"], dialect)
    errors = taken.prepared.errors
    ids: set[str] = set()
    position = 0

    def take(outcomes: Sequence[LineOutcome]) -> None:
        nonlocal position
        found = []
        for number, outcome in outcomes:
            try:
                if isinstance(outcome, RefusedLine):
                    raise InvalidRequest(outcome.reason)
                check_measured(outcome)
                # Deduplicate logs that are sent twice, and lines that occur twice in a log.
                id_ = measurement_id(outcome, platform)
                if id_ not in ids:
                    ids.add(id_)
                    found.append(Measurement(id_, outcome, position))
            except InvalidRequest as error:
                errors.append((position, f"line {number}: {error}"))
            position += 1
        taken.add(found)
        taken.count(len(errors))

    yield from lines_in_steps(body, limit, take, _lines_of(dialect).parser.counting())
    errors += taken.errors()
    return taken.prepared


def _read_json(memory: Reservation, limit: int, manifest: Manifest, body: bytes) -> Steps[CheckedRecords]:
    yield len(body)
    reader, sizes = _open(memory, limit, body)
    del body
    taken = _Taken(memory, manifest, reader.worker, reader.platform, reader.version, reader.dialect)
    for begin, end, nbytes in _portions(sizes):
        yield _BYTE_COST * nbytes + _RECORD_COST * (end - begin)
        taken.add(reader.read(map(_as_object, reader.entries[begin:end])))
        taken.count(len(reader.errors))
    reader.check()
    if taken.contradictions and not reader.report_invalid:
        position, _, message = taken.contradictions[0]
        raise InvalidBody(f"records[{position}]: {message}")
    taken.prepared.errors.extend(reader.errors + taken.errors())
    return taken.prepared


def _open(memory: Reservation, limit: int, body: bytes) -> tuple[MeasurementReader, list[int]]:
    """Return the reader of the entries of a request, and the bytes of each entry."""
    decoding = memory.decoding
    with decoding.hold_at_most(body):
        if body.count(_RECORD) <= limit:
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                document = _decode_envelope(body, decoding)
                check_count(document, "records", limit)
                reader = MeasurementReader(document, _read_text)
                memory.need(_UNREAD_BYTES * len(reader.entries))
                return reader, [len(memoryview(entry.record)) for entry in reader.entries]
        # The body is invalid or too large: decoding it as a whole finds the error.
        nbytes = decoded_bytes(body)
        decoding.check(nbytes)
        memory.need(nbytes)
        document = decode_json(body)
        check_count(document, "records", limit)
        reader = MeasurementReader(document, read_record)
        return reader, [len(body) // len(reader.entries)] * len(reader.entries)


def _decode_envelope(body: bytes, decoding: DecodeMemory) -> dict[str, Any]:
    """Decode a request except for its records, which stay text in the memory of the body."""
    fields = _FIELDS.decode(body)
    records = fields.pop("records", None)
    # An unknown field may hold any amount of JSON.
    decoding.check(sum(decoded_bytes(bytes(memoryview(raw))) for raw in fields.values()))
    document: dict[str, Any] = {name: msgspec.json.decode(raw) for name, raw in fields.items()}
    if records is not None:
        document["records"] = _ENTRIES.decode(records)
    return document


def _portions(sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and bytes of the entries of each step."""
    begin = nbytes = 0
    for position, size in enumerate(sizes, start=1):
        nbytes += size
        if nbytes >= _STEP_BYTES or _RECORD_COST * (position - begin) >= _BYTE_COST * _STEP_BYTES:
            yield begin, position, nbytes
            begin, nbytes = position, 0
    if begin < len(sizes):
        yield begin, len(sizes), nbytes


def _as_object(entry: object) -> object:
    """Return an entry in the form that `MeasurementReader` expects."""
    if not isinstance(entry, _Unread):
        return entry
    id_ = bytes(memoryview(entry.id)[: _MAX_ID_BYTES + 1])
    if len(id_) > _MAX_ID_BYTES:
        return {"id": id_.decode(errors="replace"), "record": entry.record}
    return {"id": decode_json(id_), "record": entry.record}


def _lines_of(dialect: str) -> RecordLines:
    lines = _lines.get(dialect)
    return _lines.setdefault(dialect, RecordLines(dialect=dialect)) if lines is None else lines


def _read_text(record: msgspec.Raw, dialect: str) -> Record:
    try:
        return _lines_of(dialect).parse(str(memoryview(record), "utf-8"))
    except UnicodeDecodeError as error:
        raise MalformedBody(f"body: not UTF-8 at byte {error.start} of a record") from None
