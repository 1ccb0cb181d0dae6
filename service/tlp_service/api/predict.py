"""``POST /v1/predict``."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Request, Response

from tlp_client.logs import RefusedLine
from tlp_client.wire.fields import (
    CACHED_HEADER,
    CANDIDATES_HEADER,
    CLIENT_HEADER,
    DEADLINE_HEADER,
    FORMAT,
    read_name,
)
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
    unless_gone,
)
from tlp_service.api.service import Service
from tlp_service.api.tuning_log import LogLines, predict_requests, read_log
from tlp_service.errors import ApiError, BodyTooLarge, DeadlinePassed, InvalidBody, UnknownName
from tlp_service.scoring.scorer import Prepared, Scored

T = TypeVar("T")

router = APIRouter()

#: query parameters of a tuning log
QUERY = ("platform", "version")

#: digits of the largest count that a header may state
_LONGEST_COUNT = 9


@router.post("/v1/predict", **documents.PREDICT)
async def predict(request: Request) -> Response:
    """Score candidate schedules of one task; higher is faster.

    Scores are comparable only within one task and one model version. A body of type ``application/x-ndjson`` is a tuning
    log: one score a record, each record under its own task; state the platform as a query parameter.
    """
    service: Service = request.app.state.service
    arrived = time.monotonic()
    kind = content_type(request, (JSON, NDJSON))
    deadline_s = _deadline(request)
    client = _client(request)
    stated = _count_in(request, CANDIDATES_HEADER)
    service.metrics.cached.inc(_count_in(request, CACHED_HEADER))
    query = read_query(request, QUERY if kind == NDJSON else ())
    score = _Score(service, client, None if deadline_s is None else arrived + deadline_s)
    body = await read_body(request, service.settings.max_body)
    if stated:
        service.engine.executor.check(client, stated, score.left())
    answer = _answer_log(score, body, query) if kind == NDJSON else _answer_request(score, body)
    return Response(await unless_gone(request, answer), media_type=JSON)


@dataclass(frozen=True, slots=True)
class _Score:
    """Scores what one request holds, in its client's name and until its deadline."""

    service: Service
    client: str
    deadline: float | None

    def left(self) -> float | None:
        """Return the seconds until the deadline.

        Raises
        ------
        DeadlinePassed
            If there are none: whatever would be done now is for nobody.
        """
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlinePassed("the deadline passed before the candidates could be scored")
        return left

    async def read(self, work: Callable[[], T], body: bytes) -> T:
        """Return what `work` makes of the body, which large bodies have to wait for."""

        def in_time() -> T:
            self.left()
            return work()

        return await self.service.compute(in_time, len(body))

    async def __call__(self, prepared: Prepared) -> Scored:
        """Wait for the raw scores and return the served ones."""
        engine, candidates = self.service.engine, prepared.candidates
        left = self.left()
        job = engine.executor.submit(candidates, self.client, left)
        try:
            raw = asyncio.wrap_future(candidates.future)
            await asyncio.wait({raw}, timeout=left)
            if not raw.done():
                raise DeadlinePassed("the deadline passed before all candidates were scored")
            scored = engine.scorer.finish(prepared, raw.result())
        finally:
            engine.executor.withdraw(job)  # nobody waits any more, for whatever reason
        _count(self.service, scored)
        return scored


async def _answer_request(score: _Score, body: bytes) -> bytes:
    service = score.service
    scored = await score(await score.read(lambda: _read_request(service, body), body))
    errors = [{"candidate": p, "error": message} for p, message in sorted(scored.errors.items())]
    return await service.compute(lambda: _encode(service, scored.scores, errors), scored.scores.nbytes)


def _read_request(service: Service, body: bytes) -> Prepared:
    document = decode_json(body)
    check_count(document, "candidates", service.settings.max_candidates)
    check_count(document, "primitives", service.settings.max_primitives)
    request = read_predict(document)
    _check_version(service, request.version)
    _check_primitives(service, request)
    return service.engine.scorer.prepare(request)


async def _answer_log(score: _Score, body: bytes, query: dict[str, str | None]) -> bytes:
    service = score.service
    platform, version = query["platform"], query["version"]
    _check_version(service, version)
    lines, tasks = await score.read(lambda: _read_log(service, body, platform, version), body)
    scores = np.full(len(lines.outcomes), np.nan)
    errors = {p: o.reason for p, o in enumerate(lines.outcomes) if isinstance(o, RefusedLine)}
    for prepared, positions in tasks:
        if isinstance(prepared, ApiError):
            errors.update(dict.fromkeys(positions, str(prepared)))
            continue
        scored = await score(prepared)
        scores[positions] = scored.scores
        errors.update({positions[p]: message for p, message in scored.errors.items()})
    listed = _line_errors(lines, errors)
    return await service.compute(lambda: _encode(service, scores, listed, lines=lines.numbers), len(body))


def _read_log(
    service: Service, body: bytes, platform: str | None, version: str | None
) -> tuple[LogLines, list[tuple[Prepared | ApiError, list[int]]]]:
    """Return the lines of a log, and of each of its tasks what is to be scored, or why it can't be, with its lines' positions."""
    lines = read_log(body, service.settings.max_candidates)
    tasks: list[tuple[Prepared | ApiError, list[int]]] = []
    for request, positions in predict_requests(lines, platform, version):
        try:
            _check_primitives(service, request)
            tasks.append((service.engine.scorer.prepare(request), positions))
        except (InvalidBody, UnknownName) as error:
            if error.code == "unknown_platform" and platform is not None:
                raise  # the platform of all lines
            # The target of this task does not decide the network, or contradicts the platform; another's may not.
            tasks.append((error, positions))
    return lines, tasks


def _client(request: Request) -> str:
    """Return who asks, by whose name requests wait in turn: as the client says, or its address."""
    stated = read_name(request.headers.get(CLIENT_HEADER), f"header {CLIENT_HEADER}")
    return stated or (request.client.host if request.client else "")


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


def _count_in(request: Request, header: str) -> int:
    text = request.headers.get(header, "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_COUNT):
        raise InvalidBody(f"header {header}: a count of candidates, not {text[:40]!r}")
    return int(text)


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
    served = service.engine.scorer.manifest.version
    if version is not None and version != served:
        raise UnknownName(f"version: {version!r} is not loaded; {served!r} is", code="unknown_version")


def _count(service: Service, scored: Scored) -> None:
    metrics = service.metrics
    metrics.candidates.labels(scored.platform_kind, service.engine.scorer.manifest.version).inc(
        len(scored.scores) - len(scored.errors)
    )
    metrics.invalid.inc(len(scored.errors))
    metrics.truncated.inc(scored.truncated)


def _encode(
    service: Service, scores: npt.NDArray[np.float64], errors: list[dict[str, Any]], **more: object
) -> bytes:
    manifest = service.engine.scorer.manifest
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
