"""Lets a request wait for a version that this server has not loaded yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tlp_service.api.service import Caller, Service
from tlp_service.errors import DeadlinePassed, UnknownName, VersionGone

T = TypeVar("T")

#: Maximum seconds that a request without a deadline waits for a version: the default deadline of the client.
_WAIT_S = 10.0


async def once_loaded(service: Service, caller: Caller, read: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `read`.

    If `read` needs a version that is about to be loaded, wait for the version and call `read` again.

    All requests of a search round ask for the version of the round's first answer. Another server may have
    loaded that version earlier than this one.

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
        if not await _is_loaded_in_time(service, caller, missing):
            raise
    return await read()


async def _is_loaded_in_time(service: Service, caller: Caller, missing: VersionGone | UnknownName) -> bool:
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
