"""Limits on the open connections of a server: their number, memory, and time to wait for clients."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlp_service.api.protocol import HttpProtocol

#: Upper bound on open connections, whatever the operating system allows. An open connection takes about 10
#: kB.
_MAX_CONNECTIONS = 4096
#: File descriptors that are reserved for Redis, model files and child processes.
_RESERVED_DESCRIPTORS = 96
#: Lower bound on open connections, however few file descriptors the process has.
_MIN_CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How long a connection waits for its client, and how many bytes all connections may buffer.

    Parameters
    ----------
    max_connections : int
        Open connections. Beyond it, a new connection replaces the one that has been idle for longest.
    max_held_bytes : int
        Bytes of unsent answers and unread pipelined requests, over all connections.
    head_s : float
        Seconds until the first byte of a connection, and from the first to the last byte of a head.
    drain_s : float
        Seconds for the rest of a body whose request is already answered.
    stalled_s : float
        Seconds within which a client must read at least one byte of an answer.
    min_read_bytes_per_s : float
        Minimum average rate at which a client must read an answer.
    """

    max_connections: int = _MAX_CONNECTIONS
    max_held_bytes: int = 32 << 20
    head_s: float = 20.0
    drain_s: float = 30.0
    stalled_s: float = 30.0
    min_read_bytes_per_s: float = 16 << 10


class Connections:
    """Admits connections, and closes those of slow clients. Used by the event loop only.

    Parameters
    ----------
    limits : ConnectionLimits
        Limits on connections.
    clock : callable
        Returns the current time in seconds; must be monotonic.
    """

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.clock = clock
        self._holding: set[HttpProtocol] = set()

    @property
    def held_bytes(self) -> int:
        """Bytes of unsent answers and unread pipelined requests."""
        return sum(connection.held_bytes for connection in self._holding)

    def admit(self, connection: HttpProtocol, everyone: Collection[HttpProtocol]) -> bool:
        """Return whether there is room for a new connection; close an idle one if that makes room.

        Connections without any request so far are closed before kept-alive ones, and among each the one that
        has been idle for longest.
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
        """Start counting the bytes that a connection buffers.

        While the sum over all connections is too large, abort the one that has been stalled for longest.
        """
        self._holding.add(connection)
        now = self.clock()
        while len(self._holding) > 1 and self.held_bytes > self.limits.max_held_bytes:
            for other in self._holding:
                other.note_progress(now)
            min(self._holding, key=lambda other: other.stalled_since).abort()

    def release(self, connection: HttpProtocol) -> None:
        """Stop counting the bytes that a connection buffers."""
        self._holding.discard(connection)

    def sweep(self, everyone: Iterable[HttpProtocol]) -> None:
        """Close each connection whose client has exceeded a limit; called about once per second."""
        now = self.clock()
        for connection in list(everyone):
            connection.end_overdue(now)


def limits_of_process() -> ConnectionLimits:
    """Return limits that fit the number of file descriptors that this process may open."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return ConnectionLimits()
    room = max(_MIN_CONNECTIONS, descriptors - _RESERVED_DESCRIPTORS)
    return ConnectionLimits(max_connections=min(_MAX_CONNECTIONS, room))
