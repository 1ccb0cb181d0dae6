"""``GET /v1/models``, ``/health/…`` and ``/metrics``."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tlp_service.api import documents
from tlp_service.api.service import Service
from tlp_service.errors import NotReady
from tlp_service.scoring.scorer import Scorer

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """List the loaded model versions, the one that serves first, what each was trained on, and how well it ranks."""
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
    """Answer while the process runs."""
    return {"status": "live"}


@router.get("/health/ready", **documents.READY)
async def ready(request: Request) -> dict[str, str]:
    """Answer 200 when a version is loaded and the measurement stream can be reached, else 503."""
    service: Service = request.app.state.service
    await service.stream.check()
    scorer = service.engine.versions.serving
    return {
        "status": "ready",
        "model": scorer.manifest.model,
        "version": scorer.manifest.version,
        "provider": scorer.provider,
    }


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format."""
    service: Service = request.app.state.service
    service.metrics.waiting.set(service.engine.executor.waiting)
    service.metrics.clients.set(service.engine.executor.clients)
    service.metrics.rate.set(service.engine.executor.rate)
    try:
        service.metrics.stream_length.set(await service.stream.check())
        service.metrics.quality.tell(await service.stream.quality())
    except NotReady:
        # A scrape tells of a lost stream, it does not fail.
        service.metrics.stream_length.set(float("nan"))
        service.metrics.quality.tell(None)
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)
