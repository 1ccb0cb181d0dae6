"""``/v1/registry``: list and activate versions. All routes need the admin key."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request, Response

from tlp_service.api import documents
from tlp_service.api.answers import NotAllowed, NotAuthorized, status_of
from tlp_service.api.body import decode_json, read_body
from tlp_service.api.decoded import decoded_bytes
from tlp_service.api.head import JSON, read_client, read_query
from tlp_service.api.service import Service
from tlp_service.detached import detached
from tlp_service.errors import BadVersion, InvalidBody, NotReady, VersionRefused
from tlp_service.versions.faults import cause_of
from tlp_service.versions.hints import tell
from tlp_service.versions.journal import Journal
from tlp_service.versions.registry import KEEP, Held

log = logging.getLogger(__name__)

router = APIRouter()

T = TypeVar("T")

#: Bytes of a body.
_MAX_BYTES = 64 << 10


class _Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str = ""


class _Activate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: str
    reason: str = ""
    force: bool = False


class _Prune(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keep: int = KEEP
    recent: int = KEEP


@router.get("/v1/registry", **documents.REGISTRY)
async def list_versions(request: Request) -> Response:
    """List the versions of the registry, newest first, and the history of active versions."""
    service = _authorized(request)
    held, journal = await _do(lambda: (service.engine.registry.versions(), service.engine.registry.journal()))
    return _answer({"versions": [_row(h) for h in held], **_state(service, journal)})


@router.get("/v1/registry/diff", **documents.DIFF)
async def diff(request: Request) -> Response:
    """Return the differences between two versions: settings, records and figures."""
    service = _authorized(request)
    query = read_query(request, ("a", "b"))
    one, other = query["a"], query["b"]
    if one is None or other is None:
        raise InvalidBody("query: a and b name the two versions")
    differing = await _do(partial(service.engine.registry.diff, one, other))
    return _answer({"a": one, "b": other, "differs": differing})


@router.get("/v1/registry/{version}", **documents.VERSION)
async def show(request: Request, version: str) -> Response:
    """Return one version: its manifest, and its mark if it has one."""
    service = _authorized(request)
    held = await _do(partial(service.engine.registry.held, version))
    return _answer({**_row(held), "manifest": held.manifest})


@router.post("/v1/registry/activate", **documents.ACTIVATE)
async def activate(request: Request) -> Response:
    """Activate a version.

    Servers load it in the background, and use the previous version until it is warmed up.
    """
    service = _authorized(request)
    wanted = await _read(request, _Activate)
    by = read_client(request)
    change = partial(service.engine.registry.activate, wanted.version, by, wanted.reason, wanted.force)
    return await _change(service, change)


@router.post("/v1/registry/rollback", **documents.ROLLBACK)
async def rollback(request: Request) -> Response:
    """Roll back to the version that was active before."""
    service = _authorized(request)
    wanted = await _read(request, _Reason)
    return await _change(
        service, partial(service.engine.registry.rollback, read_client(request), wanted.reason)
    )


@router.post("/v1/registry/prune", **documents.PRUNE)
async def prune(request: Request) -> Response:
    """Delete versions that are neither new nor recently active."""
    service = _authorized(request)
    wanted = await _read(request, _Prune)
    if wanted.keep < 0 or wanted.recent < 0:
        raise InvalidBody("keep, recent: counts of versions")
    pruned = await _do(partial(service.engine.registry.prune, wanted.keep, wanted.recent))
    return _answer({"pruned": pruned})


def _authorized(request: Request) -> Service:
    service: Service = request.app.state.service
    key = service.settings.admin_key
    if key is None:
        service.refusals.note(request, status_of(NotAllowed), "this server has no TLP_ADMIN_KEY")
        raise NotAllowed("this server has no TLP_ADMIN_KEY, so its registry is closed over HTTP")
    expected = f"Bearer {key.get_secret_value()}".encode()
    # Starlette decodes headers as Latin-1, so this restores the bytes. They are compared in constant time.
    sent = request.headers.get("authorization", "").encode("latin-1")
    if not hmac.compare_digest(sent, expected):
        service.refusals.note(request, status_of(NotAuthorized), "wrong key" if sent else "no key")
        raise NotAuthorized("header Authorization: 'Bearer <TLP_ADMIN_KEY>'")
    return service


async def _read(request: Request, form: type[T]) -> T:
    """Return the decoded body; an empty body is an empty object."""
    service: Service = request.app.state.service
    with service.bodies.reserve() as memory:
        body = await read_body(request, _MAX_BYTES, memory)
    try:
        service.bodies.decoding.check(decoded_bytes(body))
        return msgspec.convert(decode_json(body or b"{}"), form)
    except msgspec.ValidationError as error:
        raise InvalidBody(f"body: {error}") from None


async def _do(operation: Callable[[], T]) -> T:
    """Run a function that reads or writes the registry in a thread."""
    try:
        return await detached(operation)
    except BadVersion as error:
        raise VersionRefused(str(error)) from None
    except OSError as error:
        log.warning("the registry cannot be reached: %s", error)
        raise NotReady(f"the registry cannot be reached: {cause_of(error)}", retry_after=5) from None


async def _change(service: Service, change: Callable[[], Journal]) -> Response:
    journal = await _do(change)
    if service.engine.follower is not None:
        service.engine.follower.wake()
    await detached(partial(tell, service.redis_url, journal.active))
    return _answer(_state(service, journal))


def _state(service: Service, journal: Journal) -> dict[str, Any]:
    serving = service.engine.versions.serving.manifest.version
    return {"active": journal.active, "serving_here": serving, "history": journal.history}


def _row(held: Held) -> dict[str, Any]:
    manifest = held.manifest
    return {
        "version": manifest.version,
        "model": manifest.model,
        "created": manifest.created,
        "active": held.is_active,
        "mark": held.mark,
    }


def _answer(document: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(document), media_type=JSON)
