"""``POST /v1/measurements``."""

from __future__ import annotations

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Request, Response

from tlp_client.errors import InvalidRequest
from tlp_client.tasks import platform_kind
from tlp_client.wire.fields import FORMAT, read_name
from tlp_client.wire.measurements import Measurement, MeasurementRequest, read_measurements
from tlp_service.api import documents
from tlp_service.api.body import JSON, NDJSON, check_count, content_type, decode_json, invalid, read_body
from tlp_service.api.service import Service
from tlp_service.api.tuning_log import measurements, read_log
from tlp_service.errors import InvalidBody

router = APIRouter()


@router.post("/v1/measurements", **documents.MEASUREMENTS)
async def measure(request: Request) -> Response:
    """Keep measured records. They are in the stream before this answers; an id is kept once.

    A body of type ``application/x-ndjson`` is a tuning log; state worker and platform as query parameters. Its lines that
    are no records are answered as rejected.
    """
    service: Service = request.app.state.service
    kind = content_type(request, (JSON, NDJSON))
    body = await read_body(request, service.settings.max_body)
    query = dict(request.query_params)
    limit = service.settings.max_candidates
    read = _read_log if kind == NDJSON else _read_request
    accepted = await anyio.to_thread.run_sync(read, body, query, limit)
    kept, platforms = _with_platforms(accepted)
    added = await service.stream.append(
        kept, worker=accepted.worker, platforms=platforms, version=accepted.version
    )
    _count(service, accepted, kept, platforms, added)
    answer = {
        "format": FORMAT,
        "accepted": added,
        "duplicates": len(kept) - added,
        "rejected": [{"record": position, "error": error} for position, error in sorted(accepted.errors)],
    }
    return Response(msgspec.json.encode(answer), media_type=JSON)


def _read_request(body: bytes, query: dict[str, str], limit: int) -> MeasurementRequest:
    document = decode_json(body)
    check_count(document, "records", limit)
    try:
        return read_measurements(document)
    except InvalidRequest as error:
        raise invalid(error) from None


def _read_log(body: bytes, query: dict[str, str], limit: int) -> MeasurementRequest:
    try:
        platform = read_name(query.get("platform"), "query parameter platform")
        worker = read_name(query.get("worker"), "query parameter worker")
        version = read_name(query.get("version"), "query parameter version")
    except InvalidRequest as error:
        raise invalid(error) from None
    found, errors = measurements(read_log(body, limit), platform)
    return MeasurementRequest(
        worker=worker or "upload",
        platform=platform,
        version=version,
        report_invalid=True,
        measurements=found,
        errors=errors,
    )


def _with_platforms(request: MeasurementRequest) -> tuple[list[Measurement], list[str]]:
    """Return the measurements with the platform of each: the one stated, else the kind of its target."""
    kept, platforms = [], []
    for position, measurement in enumerate(request.measurements):
        target = measurement.record.task.target
        platform = request.platform or platform_kind(target)
        if platform is None:
            message = (
                f"id {measurement.id!r}: neither 'platform' nor the target {target!r:.80} tells the platform"
            )
            if not request.report_invalid:
                raise InvalidBody(message)
            request.errors.append((position, message))
            continue
        kept.append(measurement)
        platforms.append(platform)
    return kept, platforms


def _count(
    service: Service, request: MeasurementRequest, kept: list[Measurement], platforms: list[str], added: int
) -> None:
    metrics = service.metrics
    metrics.measurements.labels("accepted").inc(added)
    metrics.measurements.labels("duplicate").inc(len(kept) - added)
    metrics.measurements.labels("rejected").inc(len(request.errors))
    if added:
        for measurement, platform in zip(kept, platforms, strict=True):
            result = "valid" if measurement.record.is_valid else "failed"
            metrics.runs.labels(metrics.platform_label(platform), result).inc()
