"""The measurement message: records in, an account of what is kept out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

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
    """A record, the id under which it is kept once, and its position in the request."""

    id: str
    record: Record
    position: int = 0


@dataclass(frozen=True, slots=True)
class MeasurementRequest:
    """Measured records, and who measured them with which version."""

    worker: str
    platform: str | None
    version: str | None
    report_invalid: bool
    measurements: list[Measurement]
    errors: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MeasurementAnswer:
    """What became of a measurement request.

    Parameters
    ----------
    accepted : int
        Records that are now kept.
    duplicates : int
        Records whose id was kept already.
    rejected : dict
        Position of a refused record -> why.
    """

    accepted: int
    duplicates: int
    rejected: dict[int, str] = field(default_factory=dict)


def measurement_id(record: Record, platform: str | None) -> str:
    """Return an id made of the contents of a record and its platform.

    However a record reaches the service, and however often, it is kept once: costs and time stamp tell two runs of one
    candidate apart.
    """
    return "sha256:" + hashlib.sha256(f"{platform}\n{record.to_line()}".encode()).hexdigest()


def encode_measurements(
    lines: Iterable[tuple[str, str]], *, worker: str, platform: str | None = None, version: str | None = None
) -> bytes:
    """Return the body of a measurement request.

    Parameters
    ----------
    lines : iterable of (str, str)
        Id and record line of each measurement.
    """
    head = {
        "format": FORMAT,
        "worker": worker,
        "platform": platform,
        "version": version,
        "on_invalid": "report",
    }
    records = ",".join(f'{{"id": {json.dumps(id_)}, "record": {line.strip()}}}' for id_, line in lines)
    return f'{json.dumps(head)[:-1]}, "records": [{records}]}}'.encode()


def decode_measurement_answer(body: bytes, records: int) -> MeasurementAnswer:
    """Check and return the answer to a measurement request of `records` records.

    Raises
    ------
    BadAnswer
        If it does not account for each record once: accepted, a duplicate, or rejected at its position.
    """
    answer = decode_answer(body)
    accepted, duplicates, rejected = answer.get("accepted"), answer.get("duplicates"), answer.get("rejected")
    if type(accepted) is not int or type(duplicates) is not int or accepted < 0 or duplicates < 0:
        raise BadAnswer("the answer does not count what was accepted")
    errors = read_errors(rejected, "record")
    if not isinstance(rejected, list) or len(errors) != len(rejected):
        raise BadAnswer("rejected: the answer does not name each refused record once")
    if not all(0 <= position < records for position in errors):
        raise BadAnswer(f"rejected: the answer names a record that is none of the {records}")
    if accepted + duplicates + len(errors) != records:
        raise BadAnswer(
            f"the answer accounts for {shown(accepted + duplicates + len(errors))} of {records} records"
        )
    return MeasurementAnswer(accepted, duplicates, errors)


def read_measurements(document: object, read: Callable[[Any], Record] = read_record) -> MeasurementRequest:
    """Check a measurement request that a JSON parser has read.

    Parameters
    ----------
    document : object
        What the parser made of it.
    read : callable
        Returns the record of what stands in its place, or raises `InvalidInput`; for records that are still text.

    Raises
    ------
    InvalidRequest
        If it breaks the wire format; the message names the record. `UnknownFormat`, `UnknownField` and `Unsupported` where
        another server may take it.
    """
    allowed = ("format", "worker", "platform", "version", "on_invalid", "records")
    fields = read_head(document, allowed)
    report = read_on_invalid(fields)
    worker = read_name(fields.get("worker"), "worker")
    if worker is None:
        raise InvalidRequest("worker: who measured is needed")
    records = fields.get("records")
    if not isinstance(records, list) or not records:
        raise InvalidRequest("records: a list of one or more records is needed")
    measurements: list[Measurement] = []
    errors: list[tuple[int, str]] = []
    first_use: dict[str, int] = {}
    for position, entry in enumerate(records):
        try:
            measurement = _read_measurement(entry, position, read)
            used = first_use.setdefault(measurement.id, position)
            if used != position:
                raise InvalidRequest(f"id {measurement.id!r} is that of records[{used}], too")
            measurements.append(measurement)
        except UnknownField as error:
            # Of the wire format, not of this record: the others have it too, and a later server takes them all.
            raise UnknownField(f"records[{position}]: {error}") from None
        except InvalidInput as error:
            errors.append((position, f"records[{position}]: {error}"))
    if errors and not report:
        raise InvalidRequest(errors[0][1])
    return MeasurementRequest(
        worker=worker,
        platform=read_name(fields.get("platform"), "platform"),
        version=read_name(fields.get("version"), "version"),
        report_invalid=report,
        measurements=measurements,
        errors=errors,
    )


def _read_measurement(entry: object, position: int, read: Callable[[Any], Record]) -> Measurement:
    fields = read_object(entry, "the entry", ("id", "record"))
    id_ = read_name(fields.get("id"), "id")
    if id_ is None:
        raise InvalidRequest("an id is needed, made by the client")
    record = read(fields.get("record"))
    check_measured(record)
    return Measurement(id_, record, position)


def check_measured(record: Record) -> None:
    """Raise `InvalidRequest` where a record says that it succeeded with costs that no run can have."""
    if record.error_no == 0 and not record.is_valid:
        raise InvalidRequest(
            f"r[0]: the costs of a successful run are one or more numbers from 1e-9 to 1e9 seconds, "
            f"not {shown(list(record.costs))}"
        )
