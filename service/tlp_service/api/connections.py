"""What the open connections of one server hold together, and for how long each may wait for its client."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlp_service.api.protocol import HttpProtocol

#: Connections beyond which no operating system limit lets the server go; an open connection takes some 10 kB.
_MAX_CONNECTIONS = 4096
#: File descriptors that are left for Redis, model files and child processes.
_RESERVED_DESCRIPTORS = 96
#: The server serves at least so many connections, however few descriptors it has.
_MIN_CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How long a connection may wait for its client, and what all connections may hold.

    Parameters
    ----------
    max_connections : int
        Open connections; beyond it the one that has been idle for longest is closed.
    max_held_bytes : int
        Bytes of answers that are not sent and of pipelined requests that are not read, of all connections.
    head_s : float
        Seconds until the first byte of a connection, and from the first byte of a head until its end.
    drain_s : float
        Seconds for the rest of a body after the request was answered.
    stalled_s : float
        Seconds in which a client has to read some of an answer.
    min_read_bytes_per_s : float
        Rate at which a client has to read, on average since the answer began.
    """

    max_connections: int = _MAX_CONNECTIONS
    max_held_bytes: int = 32 << 20
    head_s: float = 20.0
    drain_s: float = 30.0
    stalled_s: float = 30.0
    min_read_bytes_per_s: float = 16 << 10


class Connections:
    """Admits connections and closes those whose client keeps the server waiting. Used by the event loop alone.

    Parameters
    ----------
    limits : ConnectionLimits
        The bounds.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.clock = clock
        self._holding: set[HttpProtocol] = set()

    @property
    def held_bytes(self) -> int:
        """Bytes of answers that are not sent and of requests that are not read."""
        return sum(connection.held_bytes for connection in self._holding)

    def admit(self, connection: HttpProtocol, everyone: Collection[HttpProtocol]) -> bool:
        """Return whether there is room for a new connection, if need be by closing an idle one.

        Connections that never had a request go first, then those kept alive, in both cases the one that has waited
        for longest.
        """
        if len(everyone) <= self.limits.max_connections:  # the new one is among them
            return True
        others = [other for other in everyone if other is not connection and not other.is_closing]
        if len(others) < self.limits.max_connections:
            return True
        idle = [other for other in others if other.is_idle]
        if not idle:
            return False
        min(idle, key=lambda other: (other.has_had_request, other.since)).abort()
        return True

    def hold(self, connection: HttpProtocol) -> None:
        """Count what a connection holds from now on; where all hold too much, abort the one that has stalled longest."""
        self._holding.add(connection)
        now = self.clock()
        while len(self._holding) > 1 and self.held_bytes > self.limits.max_held_bytes:
            for other in self._holding:
                other.note_progress(now)
            min(self._holding, key=lambda other: other.stalled_since).abort()

    def release(self, connection: HttpProtocol) -> None:
        """Count nothing of a connection any more."""
        self._holding.discard(connection)

    def sweep(self, everyone: Iterable[HttpProtocol]) -> None:
        """Close each connection whose client is overdue; called about once per second."""
        now = self.clock()
        for connection in list(everyone):
            connection.end_overdue(now)


def limits_of_process() -> ConnectionLimits:
    """Return the limits for as many connections as this process has file descriptors for."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return ConnectionLimits()
    room = max(_MIN_CONNECTIONS, descriptors - _RESERVED_DESCRIPTORS)
    return ConnectionLimits(max_connections=min(_MAX_CONNECTIONS, room))
