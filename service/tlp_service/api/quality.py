"""``GET /v1/quality``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from tlp_service.api.service import Service
from tlp_service.quality.metrics import decode_quality

router = APIRouter()


@router.get("/v1/quality")
async def quality(request: Request) -> dict[str, Any]:
    """Report how well scores predict measurements, by platform and version.

    The figures are over the last 2,000 measurements of each.

    Each measured candidate is scored by the version that its search used and by the serving one. Empty until
    something was measured.
    """
    service: Service = request.app.state.service
    return decode_quality(await service.stream.quality())
