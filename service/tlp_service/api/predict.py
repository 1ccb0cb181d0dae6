"""``POST /v1/predict``."""

from __future__ import annotations

import asyncio
import math
import time
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Request, Response

from tlp_client.dialects.registry import read_dialect
from tlp_client.logs import RefusedLine
from tlp_client.wire.fields import (
    CACHED_HEADER,
    CANDIDATES_HEADER,
    DEADLINE_HEADER,
    FORMAT,
)
from tlp_client.wire.predict import PredictRequest, read_predict
from tlp_service.api import documents
from tlp_service.api.answers import BodyTooLarge
from tlp_service.api.body import check_count, decode_json, read_body, unless_gone
from tlp_service.api.head import JSON, NDJSON, content_type, read_client, read_query
from tlp_service.api.missing import once_loaded
from tlp_service.api.request_memory import Reservation
from tlp_service.api.service import Caller, Service
from tlp_service.api.tuning_log import LogLines, LogTask, groups_of, request_in_steps, tasks_in_steps
from tlp_service.errors import InvalidBody, RequestFault, UnknownName
from tlp_service.inference.work import SmallTasks
from tlp_service.scheduling.steps import Steps
from tlp_service.scoring.scorer import PreparedRequest, Scored, Scorer

router = APIRouter()

#: Query parameters of a tuning log.
QUERY = ("platform", "version", "dialect")

#: Scores up to which encoding takes less time than handing the work to a thread.
_FEW_SCORES = 4096

#: Bytes of a prepared candidate: the inputs of `loopnest`, and its score.
CANDIDATE_BYTES = 1100
#: Bytes of the error message of an invalid candidate or record, until the answer is encoded.
FAULT_BYTES = 512


@router.post("/v1/predict", **documents.PREDICT)
async def predict(request: Request) -> Response:
    """Score candidate schedules of one task; higher is faster.

    Scores are comparable only within one task and one model version. A body of type ``application/x-ndjson``
    is a tuning log: one score per record, each record under its own task; state the platform as a query
    parameter.
    """
    service: Service = request.app.state.service
    arrived = time.monotonic()
    kind = content_type(request, (JSON, NDJSON))
    deadline_s = _deadline(request)
    caller = Caller(read_client(request), None if deadline_s is None else arrived + deadline_s)
    max_count = service.settings.max_candidates
    candidates = _count_in(request, CANDIDATES_HEADER, max_count)
    cached = _count_in(request, CACHED_HEADER, max_count)
    query = read_query(request, QUERY if kind == NDJSON else ())
    with service.bodies.reserve() as memory:
        body = await read_body(request, service.settings.max_body, memory, caller.left())
        if candidates:
            service.engine.executor.check(caller.name, candidates, caller.left())
        # The coroutine is the only one to hold the body, and lets go of it when it has read it.
        answer = (_answer_log if kind == NDJSON else _answer_request)(service, caller, memory, query, body)
        del body
        encoded = await unless_gone(request, answer)
    service.metrics.cached.inc(cached)
    return Response(encoded, media_type=JSON)


async def _answer_request(
    service: Service, caller: Caller, memory: Reservation, query: dict[str, str | None], body: bytes
) -> bytes:
    size = len(body)
    read = partial(_read_request, service, memory, body)
    prepared = await once_loaded(service, caller, partial(caller.read_in_steps, service.engine, read, size))
    del body, read
    memory.shrink(size)
    memory.need(FAULT_BYTES * len(prepared.errors))
    scored = await _score(service, caller, prepared)
    more = {}
    if prepared.validity is not None:
        log_odds = await caller.wait(service.engine.executor, prepared.validity)
        more["validity"] = prepared.scorer.probabilities(prepared, log_odds).tolist()
    return await _encode(prepared.scorer, scored.scores, scored.errors, **more)


def _read_request(service: Service, memory: Reservation, body: bytes) -> Steps[PreparedRequest]:
    with service.bodies.decoding.hold(body):
        request = _decode_request(service, body)
    del body
    scorer = service.engine.versions.get(request.version)
    # Counted until the request is answered. Only after the version is known: `once_loaded` may call this
    # twice.
    memory.need(CANDIDATE_BYTES * len(request.lengths) + request.indices.nbytes)
    _check_primitives(service, request)
    return (yield from scorer.prepare_in_steps(request))


def _decode_request(service: Service, body: bytes) -> PredictRequest:
    document = decode_json(body)
    check_count(document, "candidates", service.settings.max_candidates)
    check_count(document, "primitives", service.settings.max_primitives)
    return read_predict(document)


async def _score(service: Service, caller: Caller, prepared: PreparedRequest) -> Scored:
    return _finish(service, prepared, await caller.wait(service.engine.executor, prepared.candidates))


def _finish(service: Service, prepared: PreparedRequest, raw: npt.NDArray[np.float32]) -> Scored:
    scored = prepared.scorer.finish(prepared, raw)
    _count(service, prepared.scorer, scored)
    return scored


async def _answer_log(
    service: Service, caller: Caller, memory: Reservation, query: dict[str, str | None], body: bytes
) -> bytes:
    platform, version = query["platform"], query["version"]
    dialect = read_dialect(query.get("dialect"), "query parameter dialect")
    scorer = await once_loaded(service, caller, partial(_version, service, version))
    size = len(body)
    read = partial(tasks_in_steps, body, service.settings.max_candidates, memory, dialect)
    lines, tasks = await caller.read_in_steps(service.engine, read, size)
    del body, read
    memory.shrink(size)
    scores = np.full(len(lines.outcomes), np.nan)
    errors = {p: o.reason for p, o in enumerate(lines.outcomes) if isinstance(o, RefusedLine)}
    # Prepared and scored group by group, so that neither the queue nor the memory holds a whole log.
    for group in groups_of(tasks):
        prepare = partial(_prepare_tasks, service, scorer, lines, group, platform, version)
        prepared = await caller.read_in_steps(service.engine, prepare, size, units=len(group))
        positions_of = [positions for _, positions in group]
        for positions, scored in zip(
            positions_of, await _score_tasks(service, caller, memory, prepared), strict=True
        ):
            if isinstance(scored, RequestFault):
                errors.update(dict.fromkeys(positions, str(scored)))
                continue
            scores[positions] = scored.scores
            errors.update({positions[p]: message for p, message in scored.errors.items()})
    return await _encode(scorer, scores, errors, lines=lines.numbers)


async def _version(service: Service, version: str | None) -> Scorer:
    """Return the version that scores all tasks of a log, even if another becomes active in the meantime."""
    return service.engine.versions.get(version)


def _prepare_tasks(
    service: Service,
    scorer: Scorer,
    lines: LogLines,
    group: list[LogTask],
    platform: str | None,
    version: str | None,
) -> Steps[list[PreparedRequest | InvalidBody | UnknownName]]:
    """Return the prepared candidates of each task, or the error that keeps them from being scored."""
    requests = []
    for task in group:
        request = yield from request_in_steps(lines, task, platform, version)
        _check_primitives(service, request)
        requests.append(request)
    prepared = yield from scorer.prepare_all_in_steps(requests)
    for one in prepared:
        # Only an unknown platform refuses all tasks. A target that contradicts the platform, or decides no
        # network, refuses its task.
        if isinstance(one, RequestFault) and one.code == "unknown_platform" and platform is not None:
            raise one
    return prepared


async def _score_tasks(
    service: Service,
    caller: Caller,
    memory: Reservation,
    tasks: list[PreparedRequest | InvalidBody | UnknownName],
) -> list[Scored | InvalidBody | UnknownName]:
    """Return the scores of each task, or its error.

    All small tasks are scored as one job, and each of the others as a separate job.
    """
    executor = service.engine.executor
    works = [task.candidates for task in tasks if isinstance(task, PreparedRequest)]
    nbytes = sum(work.idle_bytes for work in works)
    memory.need(nbytes)
    chunk = service.engine.calibration.chunk
    small = [work for work in works if work.plan.candidates <= chunk]
    if small:
        await caller.wait(executor, SmallTasks(small))
    found: list[Scored | InvalidBody | UnknownName] = []
    for task in tasks:
        if not isinstance(task, PreparedRequest):
            found.append(task)
            continue
        is_done = task.candidates.plan.candidates <= chunk
        raw = task.candidates.result() if is_done else await caller.wait(executor, task.candidates)
        found.append(_finish(service, task, raw))
    memory.shrink(nbytes)
    return found


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


def _count_in(request: Request, header: str, max_count: int) -> int:
    """Return the count in a header, but at most `max_count`: a client may report a long-running total."""
    text = request.headers.get(header, "0")
    if not (text.isascii() and text.isdecimal()):
        raise InvalidBody(f"header {header}: a count of candidates, not {text[:40]!r}")
    digits = text.lstrip("0")
    # Compare the number of digits first: Python refuses to parse integers of thousands of digits.
    return max_count if len(digits) > len(str(max_count)) else min(int(digits or "0"), max_count)


def _check_primitives(service: Service, request: PredictRequest) -> None:
    limit = service.settings.max_primitives
    if len(request.primitives) > limit:
        raise BodyTooLarge(
            f"primitives: {len(request.primitives)} distinct ones are more than the {limit} that one task may have"
        )


def _count(service: Service, scorer: Scorer, scored: Scored) -> None:
    metrics = service.metrics
    count = len(scored.scores) - len(scored.errors)
    metrics.count_scored(scored.platform_kind, scorer.manifest.version, count)
    metrics.invalid.inc(len(scored.errors))
    metrics.truncated.inc(scored.truncated)


async def _encode(
    scorer: Scorer, scores: npt.NDArray[np.float64], errors: dict[int, str], **more: list[Any]
) -> bytes:
    if len(scores) <= _FEW_SCORES:
        return _encoded(scorer, scores, errors, **more)
    return await asyncio.to_thread(_encoded, scorer, scores, errors, **more)


def _encoded(
    scorer: Scorer,
    scores: npt.NDArray[np.float64],
    errors: dict[int, str],
    lines: list[int] | None = None,
    validity: list[float] | None = None,
) -> bytes:
    """Return the body of the answer; that for a log includes the line numbers."""
    manifest = scorer.manifest
    document: dict[str, Any] = {
        "format": FORMAT,
        "model": manifest.model,
        "version": manifest.version,
        "scores": scores.tolist(),  # NaN, the score of an invalid candidate, is written as null
        "errors": [
            {"candidate": position, **({"line": lines[position]} if lines else {}), "error": message}
            for position, message in sorted(errors.items())
        ],
    }
    if lines is not None:
        document["lines"] = lines
    if validity is not None:
        document["validity"] = validity
    return msgspec.json.encode(document)
