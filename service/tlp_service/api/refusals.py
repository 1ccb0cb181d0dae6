"""Logs requests that were refused because their key is missing or wrong."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fastapi import Request

from tlp_client.errors import InvalidRequest
from tlp_service.api.head import read_client

log = logging.getLogger(__name__)

#: Token bucket of log lines: its capacity, and seconds per new token. A flood of refusals must not fill the
#: disk.
_BURST, _REFILL_S = 20, 10.0


class RefusalLog:
    """Logs refused requests at a bounded rate.

    Parameters
    ----------
    clock : callable
        Returns seconds on a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._room = float(_BURST)
        self._refilled_s = clock()
        self._unlogged = 0

    def note(self, request: Request, status: int, reason: str) -> None:
        """Log the route, address, stated client name and reason of a refusal, but never the key."""
        now = self._clock()
        self._room = min(_BURST, self._room + (now - self._refilled_s) / _REFILL_S)
        self._refilled_s = now
        if self._room < 1:
            self._unlogged += 1
            return
        self._room -= 1
        more = f" ({self._unlogged} earlier refusals were not logged)" if self._unlogged else ""
        self._unlogged = 0
        route = getattr(request.scope.get("route"), "path", "other")
        address = request.client.host if request.client else "a local socket"
        log.warning(
            "refused with %d: %s %s from %s, client %r: %s%s",
            *(status, request.method, route, address, _stated_name(request), reason, more),
        )


def _stated_name(request: Request) -> str | None:
    try:
        return read_client(request)
    except InvalidRequest:
        return None  # an invalid name could forge a line of the log
