"""The FastAPI application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tlp_client import __version__
from tlp_client.errors import InvalidRequest
from tlp_service.api import documents, measurements, predict, quality, registry, status
from tlp_service.api.answers import NotAuthorized, status_of
from tlp_service.api.decoded import DecodeMemory
from tlp_service.api.request_memory import BodyMemory
from tlp_service.api.service import Service
from tlp_service.errors import InvalidBody, NotReady, RequestFault
from tlp_service.measurements.stream import MeasurementStream
from tlp_service.monitoring import Metrics
from tlp_service.serving.engine import Engine
from tlp_service.settings import Settings
from tlp_service.versions.hints import listen

log = logging.getLogger(__name__)

#: Maximum seconds that the start waits for the Redis server's settings. The server can score without Redis.
_WEAKNESSES_WAIT_S = 2.0
#: Seconds until the next attempt to read the Redis server's settings.
_WEAKNESSES_RETRY_S = 5.0


def create_app(settings: Settings, engine: Engine, redis_url: str) -> FastAPI:
    """Return the application for loaded versions, a registry and a measurement stream."""
    metrics, follower = Metrics(), engine.follower
    metrics.provider.labels(engine.versions.serving.provider).set(1)
    engine.versions.listen(
        lambda loaded: metrics.set_loaded([(s.manifest.model, s.manifest.version) for s in loaded])
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        stream = MeasurementStream(redis_url, settings.measurement_id_days)
        weaknesses = asyncio.create_task(_log_weaknesses(stream))
        app.state.service = Service(
            settings,
            engine,
            stream,
            metrics,
            BodyMemory(settings.max_waiting_mib << 20, DecodeMemory(settings.max_decoded_mib << 20)),
            redis_url,
        )
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(stream.close)
            stack.callback(weaknesses.cancel)
            await asyncio.wait({weaknesses}, timeout=_WEAKNESSES_WAIT_S)
            if follower is not None:
                follower.start(metrics)
                stack.push_async_callback(asyncio.to_thread, follower.stop)
                hints = asyncio.create_task(listen(redis_url, follower.wake))
                stack.callback(hints.cancel)
            yield

    app = FastAPI(
        title="TLP cost-model service", version=__version__, lifespan=lifespan, redirect_slashes=False
    )
    for module in (predict, measurements, status, registry, quality):
        app.include_router(module.router)
    app.add_exception_handler(RequestFault, _answer_api_error)
    app.add_exception_handler(InvalidRequest, _answer_invalid_request)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(Exception, _answer_unexpected)
    app.add_middleware(RequestMetrics, metrics=metrics)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # FastAPI's way to extend it
    return app


async def _log_weaknesses(stream: MeasurementStream) -> None:
    """Log once, as soon as the Redis server answers, in which ways it can lose a measurement."""
    while True:
        try:
            found = await stream.weaknesses()
        except NotReady:  # the write probe logs it
            await asyncio.sleep(_WEAKNESSES_RETRY_S)
        else:
            break
    for weakness in found:
        log.warning("the Redis server can lose acknowledged measurements: %s", weakness)


def _error(status_code: int, message: str, code: str, headers: dict[str, str] | None = None) -> Response:
    body = msgspec.json.encode({"error": message, "code": code})
    return Response(body, status_code, headers, media_type="application/json")


# These are coroutines although they never await, because Starlette runs plain functions in a thread pool.
async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestFault)
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after is not None else None
    if isinstance(error, NotAuthorized):
        headers = {"WWW-Authenticate": "Bearer"}
    return _error(status_of(type(error)), str(error), error.code, headers)


async def _answer_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidRequest)
    return _error(status_of(InvalidBody), str(error), error.code)


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(
        error.status_code,
        f"{request.method} {request.url.path}: {error.detail}",
        "http",
        dict(error.headers or {}),
    )


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    # Starlette logs the traceback, and the client gets no internal details.
    return _error(
        500, f"{request.method} {request.url.path}: an unexpected error, see the server's log", "internal"
    )


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for model in documents.REFERENCED:
            schema["components"]["schemas"].setdefault(model.__name__, documents.schema_of(model))
        schema["components"]["securitySchemes"] = {"admin_key": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = schema
    return app.openapi_schema


class RequestMetrics:
    """Counts and times requests. Plain ASGI: BaseHTTPMiddleware costs 0.3 ms and hides disconnects."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, and count it by its route, because paths are chosen by callers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status_code = 500
        has_started = False

        async def watched_send(message: Message) -> None:
            nonlocal status_code, has_started
            if message["type"] == "http.response.start":
                has_started = True
                status_code = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except asyncio.CancelledError:
            # The grace period of a stopping server is over: answer the waiting client.
            if has_started:
                raise
            await _error(503, "the server is stopping", "not_ready")(scope, receive, watched_send)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(route, status_code).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - started)
