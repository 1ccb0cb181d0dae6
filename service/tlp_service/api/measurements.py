"""``POST /v1/measurements``."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import msgspec
from fastapi import APIRouter, Request, Response

from tlp_client.wire.fields import FORMAT
from tlp_service.api import documents
from tlp_service.api.body import read_body, unless_gone
from tlp_service.api.head import JSON, NDJSON, content_type, read_client, read_query
from tlp_service.api.measured_body import CheckedRecords, prepare_in_steps
from tlp_service.api.service import Caller, Service

router = APIRouter()

#: Query parameters of a tuning log.
QUERY = ("worker", "platform", "version", "dialect")

#: Maximum number of refused records whose answer is encoded on the event loop, which is faster than in a
#: thread.
_FEW_ERRORS = 1024


@router.post("/v1/measurements", **documents.MEASUREMENTS)
async def measure(request: Request) -> Response:
    """Store measured records.

    They are in the stream before the answer is sent. Records are deduplicated by id.

    A body of type ``application/x-ndjson`` is a tuning log; state worker and platform as query parameters.
    Lines that are not records are reported as rejected.
    """
    service: Service = request.app.state.service
    kind = content_type(request, (JSON, NDJSON))
    query = read_query(request, QUERY if kind == NDJSON else ())
    caller = Caller(read_client(request), deadline=None)
    with service.bodies.reserve() as memory:
        body = await read_body(request, service.settings.max_body, memory)
        size = len(body)
        memory.need(size)  # memory for the entries that are encoded for the stream
        manifest = service.engine.versions.serving.manifest
        limit = service.settings.max_candidates
        read = partial(prepare_in_steps, memory, limit, manifest, kind, body, query)
        del body
        reading = caller.read_in_steps(service.engine, read, size, is_measured=True)
        del read
        prepared = await unless_gone(request, reading)
        del reading
        memory.shrink(size)
        # From here on the records are stored, even if the client disconnects.
        added = await service.stream.append(prepared.entries)
        _count(service, prepared, added)
        encode = partial(_encoded, prepared, len(added))
        is_short = len(prepared.errors) <= _FEW_ERRORS
        return Response(encode() if is_short else await asyncio.to_thread(encode), media_type=JSON)


def _encoded(prepared: CheckedRecords, added: int) -> bytes:
    """Return the answer's body."""
    answer = {
        "format": FORMAT,
        "accepted": added,
        "duplicates": len(prepared.entries) - added,
        "rejected": [{"record": position, "error": error} for position, error in sorted(prepared.errors)],
    }
    return msgspec.json.encode(answer)


def _count(service: Service, prepared: CheckedRecords, added: list[int]) -> None:
    metrics = service.metrics
    metrics.measurements.labels("accepted").inc(len(added))
    metrics.measurements.labels("duplicate").inc(len(prepared.entries) - len(added))
    metrics.measurements.labels("rejected").inc(len(prepared.errors))
    runs = Counter((prepared.entries[position].platform, prepared.are_valid[position]) for position in added)
    for (platform, is_valid), count in runs.items():
        result = "valid" if is_valid else "failed"
        metrics.runs.labels(metrics.platform_label(platform), result).inc(count)
