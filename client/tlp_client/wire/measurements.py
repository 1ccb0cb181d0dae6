"""Measurement requests and their answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tlp_client.dialects.registry import DEFAULT, read_dialect, stated_name
from tlp_client.errors import BadAnswer, InvalidInput, InvalidRequest, UnknownField, shown
from tlp_client.records import Record, read_record
from tlp_client.wire.fields import (
    FORMAT,
    decode_answer,
    read_errors,
    read_head,
    read_name,
    read_object,
    read_on_invalid,
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A record, its id for deduplication, and its position in the request."""

    id: str
    record: Record
    position: int = 0


@dataclass(frozen=True, slots=True)
class MeasurementRequest:
    """Measured records, with the worker that measured them and the model version that scored them."""

    worker: str
    platform: str | None
    version: str | None
    report_invalid: bool
    measurements: list[Measurement]
    errors: list[tuple[int, str]] = field(default_factory=list)
    dialect: str = DEFAULT


@dataclass(frozen=True, slots=True)
class MeasurementAnswer:
    """The answer to a measurement request.

    Parameters
    ----------
    accepted : int
        Number of records that the service now stores.
    duplicates : int
        Number of records whose id was stored already.
    rejected : dict
        Reason for each refused record, by position.
    """

    accepted: int
    duplicates: int
    rejected: dict[int, str] = field(default_factory=dict)


def measurement_id(record: Record, platform: str | None) -> str:
    """Return the id of a measurement: a hash of its record and platform.

    The service deduplicates records by this id. Two runs of one candidate get different ids, because their
    costs and timestamps differ. Records of two dialects get different ids even if their lines are equal.
    """
    stated = stated_name(record.task.dialect)
    parts = [str(platform), *([] if stated is None else [stated]), record.to_line()]
    return "sha256:" + hashlib.sha256("\n".join(parts).encode()).hexdigest()


def encode_measurements(
    lines: Iterable[tuple[str, str]],
    *,
    worker: str,
    platform: str | None = None,
    version: str | None = None,
    dialect: str | None = None,
) -> bytes:
    """Return the body of a measurement request.

    Parameters
    ----------
    lines : iterable of (str, str)
        Id and record line of each measurement.
    dialect : str or None
        Dialect of all records; None for the default one, which is not stated.
    """
    head = {
        "format": FORMAT,
        "worker": worker,
        "platform": platform,
        "version": version,
        **({} if dialect is None else {"dialect": dialect}),
        "on_invalid": "report",
    }
    records = ",".join(f'{{"id": {json.dumps(id_)}, "record": {line.strip()}}}' for id_, line in lines)
    return f'{json.dumps(head)[:-1]}, "records": [{records}]}}'.encode()


def decode_measurement_answer(body: bytes, records: int) -> MeasurementAnswer:
    """Check and return the answer to a measurement request of `records` records.

    Raises
    ------
    BadAnswer
        If it does not account for each record exactly once: as accepted, duplicate, or rejected at its
        position.
    """
    answer = decode_answer(body)
    accepted, duplicates, rejected = answer.get("accepted"), answer.get("duplicates"), answer.get("rejected")
    if type(accepted) is not int or type(duplicates) is not int or accepted < 0 or duplicates < 0:
        raise BadAnswer("the answer does not count what was accepted")
    errors = read_errors(rejected, "record")
    if not isinstance(rejected, list) or len(errors) != len(rejected):
        raise BadAnswer("rejected: the answer does not name each refused record once")
    if not all(0 <= position < records for position in errors):
        raise BadAnswer(f"rejected: the answer names a record outside of the {records} that were sent")
    if accepted + duplicates + len(errors) != records:
        raise BadAnswer(
            f"the answer accounts for {shown(accepted + duplicates + len(errors))} of {records} records"
        )
    return MeasurementAnswer(accepted, duplicates, errors)


def read_measurements(
    document: object, read: Callable[[Any, str], Record] = read_record
) -> MeasurementRequest:
    """Check a parsed JSON measurement request.

    Parameters
    ----------
    document : object
        Request as a JSON parser returns it.
    read : callable
        Converts an entry's ``record`` to a `Record`, given the dialect, or raises `InvalidInput`. Replace it
        for records that are still text.

    Raises
    ------
    InvalidRequest
        If it breaks the wire format; the message names the record. If another release may accept the request,
        the subclass `UnknownFormat`, `UnknownField` or `Unsupported`.
    """
    reader = MeasurementReader(document, read)
    measurements = reader.read(reader.entries)
    reader.check()
    return MeasurementRequest(
        worker=reader.worker,
        platform=reader.platform,
        version=reader.version,
        report_invalid=reader.report_invalid,
        measurements=measurements,
        errors=reader.errors,
        dialect=reader.dialect,
    )


class MeasurementReader:
    """Checks a measurement request in portions; `read_measurements` checks it at once.

    Parameters
    ----------
    document : object
        Request as a JSON parser returns it. The entries may still be undecoded.
    read : callable
        Converts an entry's ``record`` to a `Record`, given the dialect, or raises `InvalidInput`.

    Attributes
    ----------
    entries : list
        The entries of ``records``.
    errors : list of (int, str)
        Position and error of each invalid entry read so far.

    Raises
    ------
    InvalidRequest
        If a field beside the entries breaks the wire format, or there are no entries.
    """

    def __init__(self, document: object, read: Callable[[Any, str], Record] = read_record) -> None:
        allowed = ("format", "worker", "platform", "version", "dialect", "on_invalid", "records")
        fields = read_head(document, allowed)
        self.report_invalid = read_on_invalid(fields)
        worker = read_name(fields.get("worker"), "worker")
        if worker is None:
            raise InvalidRequest("worker: who measured is needed")
        records = fields.get("records")
        if not isinstance(records, list) or not records:
            raise InvalidRequest("records: a list of one or more records is needed")
        self.entries: list[Any] = records
        self.worker = worker
        self.platform = read_name(fields.get("platform"), "platform")
        self.version = read_name(fields.get("version"), "version")
        # All records share one dialect, as they share worker and version, because one tuner measured them.
        self.dialect = read_dialect(fields.get("dialect"), "dialect")
        self._read = read
        self._position = 0
        self.errors: list[tuple[int, str]] = []
        self._first_use: dict[str, int] = {}

    def read(self, entries: Iterable[object]) -> list[Measurement]:
        """Return the valid measurements among the next entries, and add the errors of the others to `errors`.

        Raises
        ------
        UnknownField
            If an entry has a field that this server does not know.
        """
        found = []
        for entry in entries:
            position = self._position
            self._position += 1
            try:
                measurement = self._read_measurement(entry, position)
                used = self._first_use.setdefault(measurement.id, position)
                if used != position:
                    raise InvalidRequest(f"id {measurement.id!r} is that of records[{used}], too")
                found.append(measurement)
            except UnknownField as error:
                # An unknown field concerns the wire format, not this record: a later server may accept the
                # whole request.
                raise UnknownField(f"records[{position}]: {error}") from None
            except InvalidInput as error:
                self.errors.append((position, f"records[{position}]: {error}"))
        return found

    def check(self) -> None:
        """Raise `InvalidRequest` if an entry was invalid and ``on_invalid`` is not ``report``."""
        if self.errors and not self.report_invalid:
            raise InvalidRequest(self.errors[0][1])

    def _read_measurement(self, entry: object, position: int) -> Measurement:
        fields = read_object(entry, "the entry", ("id", "record"))
        id_ = read_name(fields.get("id"), "id")
        if id_ is None:
            raise InvalidRequest("an id is needed, made by the client")
        record = self._read(fields.get("record"), self.dialect)
        check_measured(record)
        return Measurement(id_, record, position)


def check_measured(record: Record) -> None:
    """Raise `InvalidRequest` if a record reports success with implausible costs."""
    if record.error_no == 0 and not record.is_valid:
        raise InvalidRequest(
            f"r[0]: the costs of a successful run are one or more numbers from 1e-9 to 1e9 seconds, "
            f"not {shown(list(record.costs))}"
        )
