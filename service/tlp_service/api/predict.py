"""``POST /v1/predict``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Request, Response

from tlp_client.logs import RefusedLine
from tlp_client.wire.fields import DEADLINE_HEADER, FORMAT
from tlp_client.wire.predict import PredictRequest, read_predict
from tlp_service.api import documents
from tlp_service.api.body import (
    JSON,
    NDJSON,
    check_count,
    content_type,
    decode_json,
    read_body,
    read_query,
)
from tlp_service.api.service import Service
from tlp_service.api.tuning_log import LogLines, predict_requests, read_log
from tlp_service.errors import BodyTooLarge, InvalidBody, UnknownName
from tlp_service.scoring.scorer import Scored

router = APIRouter()

#: query parameters of a tuning log
QUERY = ("platform", "version")


@router.post("/v1/predict", **documents.PREDICT)
async def predict(request: Request) -> Response:
    """Score candidate schedules of one task; higher is faster.

    Scores are comparable only within one task and one model version. A body of type ``application/x-ndjson`` is a tuning
    log: one score a record, each record under its own task; state the platform as a query parameter.
    """
    service: Service = request.app.state.service
    kind = content_type(request, (JSON, NDJSON))
    deadline_s = _deadline(request)
    body = await read_body(request, service.settings.max_body)
    work = _score_log if kind == NDJSON else _score_request
    query = read_query(request, QUERY if kind == NDJSON else ())
    answer = await service.queue.run(lambda proceed: work(service, body, query, proceed), deadline_s)
    return Response(answer, media_type=JSON)


def _deadline(request: Request) -> float | None:
    text = request.headers.get(DEADLINE_HEADER)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidBody(f"header {DEADLINE_HEADER}: seconds, a positive number, not {text[:40]!r}")
    return seconds


def _score_request(
    service: Service, body: bytes, query: dict[str, str | None], proceed: Callable[[], None]
) -> bytes:
    document = decode_json(body)
    check_count(document, "candidates", service.settings.max_candidates)
    check_count(document, "primitives", service.settings.max_primitives)
    request = read_predict(document)
    _check_version(service, request.version)
    _check_primitives(service, request)
    scored = service.scorer.score(request, proceed)
    _count(service, scored)
    errors = [{"candidate": p, "error": message} for p, message in sorted(scored.errors.items())]
    return _answer(service, scored.scores, errors)


def _score_log(
    service: Service, body: bytes, query: dict[str, str | None], proceed: Callable[[], None]
) -> bytes:
    lines = read_log(body, service.settings.max_candidates)
    platform, version = query["platform"], query["version"]
    _check_version(service, version)
    scores = np.full(len(lines.outcomes), np.nan)
    errors = {p: o.reason for p, o in enumerate(lines.outcomes) if isinstance(o, RefusedLine)}
    for request, positions in predict_requests(lines, platform, version):
        try:
            _check_primitives(service, request)
            scored = service.scorer.score(request, proceed)
        except (InvalidBody, UnknownName) as error:
            if error.code == "unknown_platform" and platform is not None:
                raise  # the platform of all lines
            # The target of this task does not decide the network, or contradicts the platform; another's may not.
            errors.update(dict.fromkeys(positions, str(error)))
            continue
        _count(service, scored)
        scores[positions] = scored.scores
        errors.update({positions[p]: message for p, message in scored.errors.items()})
    return _answer(service, scores, _line_errors(lines, errors), lines=lines.numbers)


def _line_errors(lines: LogLines, errors: dict[int, str]) -> list[dict[str, Any]]:
    return [
        {"candidate": position, "line": lines.numbers[position], "error": message}
        for position, message in sorted(errors.items())
    ]


def _check_primitives(service: Service, request: PredictRequest) -> None:
    limit = service.settings.max_primitives
    if len(request.primitives) > limit:
        raise BodyTooLarge(
            f"primitives: {len(request.primitives)} distinct ones are more than the {limit} that one task may have"
        )


def _check_version(service: Service, version: str | None) -> None:
    served = service.scorer.manifest.version
    if version is not None and version != served:
        raise UnknownName(f"version: {version!r} is not loaded; {served!r} is", code="unknown_version")


def _count(service: Service, scored: Scored) -> None:
    metrics = service.metrics
    metrics.candidates.labels(scored.platform_kind, service.scorer.manifest.version).inc(
        len(scored.scores) - len(scored.errors)
    )
    metrics.invalid.inc(len(scored.errors))
    metrics.truncated.inc(scored.truncated)


def _answer(
    service: Service, scores: npt.NDArray[np.float64], errors: list[dict[str, Any]], **more: object
) -> bytes:
    manifest = service.scorer.manifest
    return msgspec.json.encode(
        {
            "format": FORMAT,
            "model": manifest.model,
            "version": manifest.version,
            "scores": scores.tolist(),  # NaN, the score of an invalid candidate, is written as null
            "errors": errors,
            **more,
        }
    )
