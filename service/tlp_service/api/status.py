"""``GET /v1/models``, ``/health/…`` and ``/metrics``."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tlp_service.api import documents
from tlp_service.api.service import Service
from tlp_service.errors import NotReady
from tlp_service.scoring.scorer import Scorer

router = APIRouter()

T = TypeVar("T")

#: What the health checks report while measurements can be kept.
KEPT = "kept"
#: Seconds that a readiness check waits for the stream. Load balancers often wait only one second for the
#: answer.
_READY_WAIT_S = 0.25


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """List the loaded model versions, the serving one first.

    Each has its training data and its ranking quality.
    """
    service: Service = request.app.state.service
    loaded = service.engine.versions.loaded
    return {"models": [_describe(service, scorer, scorer is loaded[0]) for scorer in loaded]}


def _describe(service: Service, scorer: Scorer, is_serving: bool) -> dict[str, Any]:
    manifest = scorer.manifest
    networks = [
        {
            "platform_kind": n.platform_kind,
            "platforms": n.platforms,
            "features": n.features,
            "steps": n.steps,
            "trained_on": n.trained_on,
            "metrics": n.metrics,
        }
        for n in manifest.networks
    ]
    return {
        "model": manifest.model,
        "version": manifest.version,
        "created": manifest.created,
        "serving": is_serving,
        "provider": scorer.provider,
        "calibration": dataclasses.asdict(service.engine.calibration),
        "networks": networks,
    }


@router.get("/health/live")
async def live() -> dict[str, str]:
    """Answer 200 while the process runs."""
    return {"status": "live"}


@router.get("/health/ready", **documents.READY)
async def ready(request: Request) -> dict[str, str]:
    """Answer 200 if the server can score, else 503. The body also reports whether measurements can be kept.

    This is the check for load balancers: a server that can score is useful even while measurements cannot be
    kept.
    """
    service: Service = request.app.state.service
    if service.engine.executor.is_draining:
        raise NotReady("the server is stopping", retry_after=5)
    scorer = service.engine.versions.serving
    return {
        "status": "ready",
        "model": scorer.manifest.model,
        "version": scorer.manifest.version,
        "provider": scorer.provider,
        "measurements": await service.stream.probe.reason(_READY_WAIT_S) or KEPT,
    }


@router.get("/health/measurements", **documents.KEPT)
async def can_keep(request: Request) -> dict[str, str]:
    """Answer 200 if a measurement can be written, else 503 with the reason.

    The server tries a write at most once per second.
    """
    service: Service = request.app.state.service
    reason = await service.stream.probe.reason()
    if reason is not None:
        raise NotReady(f"the measurement stream cannot be written: {reason}", retry_after=2)
    return {"measurements": KEPT}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format."""
    service: Service = request.app.state.service
    service.metrics.waiting.set(service.engine.executor.waiting)
    service.metrics.clients.set(service.engine.executor.clients)
    service.metrics.rate.set(service.engine.executor.rate)
    reason, length, quality = await asyncio.gather(
        service.stream.probe.reason(),
        service.stream.length(),
        service.stream.quality(),
        return_exceptions=True,
    )
    # A scrape reports a lost stream; it does not fail.
    service.metrics.writable.set(1 if reason is None else 0)
    service.metrics.stream_length.set(_unless_lost(length, float("nan")))
    service.metrics.quality.tell(_unless_lost(quality, None))
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _unless_lost(found: Any, otherwise: T) -> Any | T:
    if isinstance(found, NotReady):
        return otherwise
    if isinstance(found, BaseException):
        raise found
    return found
