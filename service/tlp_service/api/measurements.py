"""``POST /v1/measurements``."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from tlp_client.records import Record
from tlp_client.tasks import platform_kind
from tlp_client.wire.fields import FORMAT
from tlp_client.wire.measurements import MeasurementRequest, read_measurements
from tlp_service.api import documents
from tlp_service.api.body import check_count, decode_json, read_body
from tlp_service.api.decoded import DecodeMemory, decoded_bytes, let_go
from tlp_service.api.head import JSON, NDJSON, content_type, read_client, read_query
from tlp_service.api.predict import FAULT_BYTES
from tlp_service.api.request_memory import Reservation
from tlp_service.api.service import Caller, Service
from tlp_service.api.tuning_log import measurements, read_log
from tlp_service.errors import InvalidBody
from tlp_service.measurements.lines import RecordLines
from tlp_service.measurements.stream import Entry
from tlp_service.versions.platforms import contradiction

router = APIRouter()

#: query parameters of a tuning log
QUERY = ("worker", "platform", "version")

#: How often the bytes of a body are in memory again: as texts of its records, and as lines of the stream.
_COPIES = 2
#: The name that begins each record.
_RECORD = b'"record"'


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """One record of a request that is still text."""

    id: Any
    record: msgspec.Raw


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRIES = msgspec.json.Decoder(list[_Entry])

#: Shared by all requests.
_lines = RecordLines()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request on its way into the stream.

    Parameters
    ----------
    entries : list of Entry
        What to append.
    are_valid : list of bool
        Whether each entry's run succeeded.
    errors : list of (int, str)
        Position in the request and fault of each record that is refused.
    """

    entries: list[Entry]
    are_valid: list[bool]
    errors: list[tuple[int, str]]


@router.post("/v1/measurements", **documents.MEASUREMENTS)
async def measure(request: Request) -> Response:
    """Keep measured records. They are in the stream before this answers; an id is kept once.

    A body of type ``application/x-ndjson`` is a tuning log; state worker and platform as query parameters. Its lines
    that are no records are answered as rejected.
    """
    service: Service = request.app.state.service
    kind = content_type(request, (JSON, NDJSON))
    query = read_query(request, QUERY if kind == NDJSON else ())
    caller = Caller(read_client(request), deadline=None)
    with service.bodies.reserve() as memory:
        body = await read_body(request, service.settings.max_body, memory)
        size = len(body)
        memory.need(_COPIES * size)
        read = partial(_prepare, service, memory, kind, body, query)
        del body
        prepared = await caller.read(service.engine, read, size, is_measured=True)
        del read
        memory.need(FAULT_BYTES * len(prepared.errors))
        added = await service.stream.append(prepared.entries)
        _count(service, prepared, added)
        answer = {
            "format": FORMAT,
            "accepted": len(added),
            "duplicates": len(prepared.entries) - len(added),
            "rejected": [{"record": position, "error": error} for position, error in sorted(prepared.errors)],
        }
        return Response(msgspec.json.encode(answer), media_type=JSON)


def _prepare(
    service: Service, memory: Reservation, kind: str, body: bytes, query: dict[str, str | None]
) -> Prepared:
    limit = service.settings.max_candidates
    if kind == NDJSON:
        with let_go():
            return _entries_of(service, _read_log(body, query, limit, memory))
    with service.bodies.decoding.hold_at_most(body):
        return _entries_of(service, _read_request(body, limit, service.bodies.decoding))


def _entries_of(service: Service, request: MeasurementRequest) -> Prepared:
    prepared = Prepared([], [], list(request.errors))
    manifest = service.engine.versions.serving.manifest
    for measurement in request.measurements:
        target = measurement.record.task.target
        platform = request.platform or platform_kind(target)
        message = contradiction(manifest, platform, target)
        if platform is None:
            message = f"neither 'platform' nor the target {target!r:.80} tells the platform"
        if platform is None or message is not None:
            if not request.report_invalid:
                raise InvalidBody(f"records[{measurement.position}]: {message}")
            prepared.errors.append((measurement.position, f"id {measurement.id!r}: {message}"))
            continue
        line = _lines.line(measurement.record)
        entry = Entry(measurement.id, line, request.worker, platform, request.version or "")
        prepared.entries.append(entry)
        prepared.are_valid.append(measurement.record.is_valid)
    return prepared


def _read_request(body: bytes, limit: int, decoding: DecodeMemory) -> MeasurementRequest:
    parser = _lines.parser.counting()  # other threads use the same caches meanwhile

    def read(text: str) -> Record:
        record = parser.parse(text)
        decoding.check(parser.made_bytes)
        return record

    if body.count(_RECORD) <= limit:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            document = _decode_envelope(body)
            check_count(document, "records", limit)
            return read_measurements(document, read)
    # What is wrong with it shows when it is read as a whole.
    decoding.check(decoded_bytes(body))
    document = decode_json(body)
    check_count(document, "records", limit)
    return read_measurements(document)


def _decode_envelope(body: bytes) -> dict[str, Any]:
    """Return a request whose records are still text."""
    document: dict[str, Any] = {}
    for name, raw in _FIELDS.decode(body).items():
        if name == "records":
            document[name] = [{"id": e.id, "record": str(e.record, "utf-8")} for e in _ENTRIES.decode(raw)]
        else:
            document[name] = msgspec.json.decode(raw)
    return document


def _read_log(
    body: bytes, query: dict[str, str | None], limit: int, memory: Reservation
) -> MeasurementRequest:
    found, errors = measurements(read_log(body, limit, memory, _lines.parser), query["platform"])
    return MeasurementRequest(
        worker=query["worker"] or "upload",
        platform=query["platform"],
        version=query["version"],
        report_invalid=True,
        measurements=found,
        errors=errors,
    )


def _count(service: Service, prepared: Prepared, added: list[int]) -> None:
    metrics = service.metrics
    metrics.measurements.labels("accepted").inc(len(added))
    metrics.measurements.labels("duplicate").inc(len(prepared.entries) - len(added))
    metrics.measurements.labels("rejected").inc(len(prepared.errors))
    runs = Counter((prepared.entries[position].platform, prepared.are_valid[position]) for position in added)
    for (platform, is_valid), count in runs.items():
        result = "valid" if is_valid else "failed"
        metrics.runs.labels(metrics.platform_label(platform), result).inc(count)
