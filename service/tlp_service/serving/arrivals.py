"""Lets requests wait for a version that other servers have loaded and this one is about to load."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial

import anyio

from tlp_service.detached import detached
from tlp_service.errors import NotReady

#: Minimum seconds between two reads of the registry, however many requests ask for unknown versions.
_READ_PAUSE_S = 0.25

#: Seconds that a request waits for a read of the registry, including the read before it.
_MAX_READ_S = 5.0


class Arrivals:
    """Notifies requests when a version has been loaded, or will not be.

    The thread that loads versions reports its cycles with `begin`, `tell` and `end`. Requests wait on one
    event loop.

    Parameters
    ----------
    coming : callable
        Reads the registry and returns the versions that this server should hold. Called in a thread, one call
        at a time.
    wake : callable
        Makes the next cycle begin now.
    """

    def __init__(self, coming: Callable[[], frozenset[str]], wake: Callable[[], None]) -> None:
        self._coming = coming
        self._wake = wake
        self._lock = threading.Lock()
        self._listeners: set[Callable[[], object]] = set()
        self._begun = self._ended = 0  # numbers of the last cycle that began, and that ended
        self._is_closed = False
        self._read_s = float("-inf")
        self._last_read: asyncio.Future[frozenset[str]] | None = None
        self._next_read: asyncio.Future[frozenset[str]] | None = None

    def begin(self) -> None:
        """Report that a cycle begins; it reads the registry after this call."""
        self._begun += 1

    def tell(self) -> None:
        """Report that the set of loaded versions has changed."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                listener()

    def end(self) -> None:
        """Report that the cycle has ended and loads nothing more."""
        self._ended = self._begun
        self.tell()

    def close(self) -> None:
        """Refuse all waiting requests, since the server is stopping."""
        self._is_closed = True
        self.tell()

    async def wait(self, version: str, is_loaded: Callable[[], bool], seconds: float) -> bool:
        """Return True once a version is loaded, or False as soon as it is certain that it will not be.

        Raises
        ------
        TimeoutError
            If neither has happened after `seconds`.
        NotReady
            If the server is stopping.
        """
        changed = asyncio.Event()
        listener = partial(asyncio.get_running_loop().call_soon_threadsafe, changed.set)
        with self._lock:
            self._listeners.add(listener)
        try:
            with anyio.fail_after(seconds):
                return await self._wait(version, is_loaded, changed)
        finally:
            with self._lock:
                self._listeners.discard(listener)

    async def _wait(self, version: str, is_loaded: Callable[[], bool], changed: asyncio.Event) -> bool:
        if version not in await self._coming_versions():
            return is_loaded()  # it may be loaded although the registry has dropped it
        seen = self._begun  # any later cycle reads a registry that is at least as new
        self._wake()
        while True:
            changed.clear()
            has_ended = self._ended > seen
            if is_loaded():
                return True
            if self._is_closed:
                raise NotReady("the server is stopping", retry_after=5)
            if has_ended:
                return False
            await changed.wait()

    async def _coming_versions(self) -> frozenset[str]:
        """Return the versions from a registry read that begins after this call.

        Concurrent callers share one read. Return no versions if the registry hangs. Otherwise callers who
        invent version names could hold connections open.
        """
        if self._next_read is None:
            self._next_read = asyncio.ensure_future(self._read_next(self._last_read))
        read = self._next_read
        await asyncio.wait({read}, timeout=_MAX_READ_S)
        return read.result() if read.done() else frozenset()

    async def _read_next(self, before: asyncio.Future[frozenset[str]] | None) -> frozenset[str]:
        if before is not None:
            await asyncio.wait({before})
        await asyncio.sleep(max(0.0, self._read_s + _READ_PAUSE_S - time.monotonic()))
        self._last_read, self._next_read = self._next_read, None
        self._read_s = time.monotonic()
        return await detached(self._coming)
