"""What a request does whose version is not loaded here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tlp_service.api.service import Caller, Service
from tlp_service.errors import DeadlinePassed, UnknownName, VersionGone

T = TypeVar("T")

#: Seconds that a request without a deadline waits for a version: the deadline of the client's default.
_WAIT_S = 10.0


async def once_loaded(service: Service, caller: Caller, read: Callable[[], Awaitable[T]]) -> T:
    """Return what `read` returns. If it misses a version that is on its way to this server, call it again when that has come.

    A search's round asks for the version of its first answer, and another server may have loaded that one sooner.

    Parameters
    ----------
    read : callable
        Reads the request; it may be called twice.

    Raises
    ------
    VersionGone, UnknownName
        If the version will not be loaded here.
    DeadlinePassed
        If it was not loaded by the request's deadline.
    NotReady
        If the server is stopping.
    """
    try:
        return await read()
    except (VersionGone, UnknownName) as missing:
        if not await _comes(service, caller, missing):
            raise
    return await read()


async def _comes(service: Service, caller: Caller, missing: VersionGone | UnknownName) -> bool:
    follower, version = service.engine.follower, missing.version
    if follower is None or version is None:
        return False
    left = caller.left()
    try:
        return await follower.wait_for(version, _WAIT_S if left is None else left)
    except TimeoutError:
        if left is None:
            return False
        raise DeadlinePassed(f"the deadline passed before version {version!r} was loaded here") from None
