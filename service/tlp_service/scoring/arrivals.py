"""Requests that wait for a version which other servers have loaded already and this one has not yet."""

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

#: Seconds between two looks at the registry, however many requests ask for versions that nobody knows.
_LOOK_S = 0.25

#: Seconds that a look may take, and the one before it.
_MAX_LOOK_S = 5.0


class Arrivals:
    """Says when a version has come that is on its way to this server.

    The thread that loads versions tells of its cycles by `begin`, `tell` and `end`; requests wait on one event loop.

    Parameters
    ----------
    coming : callable
        Looks at the registry and returns the versions that this server is to hold; called in a thread, one call at a time.
    wake : callable
        Has the next cycle begin now.
    """

    def __init__(self, coming: Callable[[], frozenset[str]], wake: Callable[[], None]) -> None:
        self._coming = coming
        self._wake = wake
        self._lock = threading.Lock()
        self._listeners: set[Callable[[], object]] = set()
        self._begun = self._ended = 0  # cycles
        self._is_closed = False
        self._looked_s = float("-inf")
        self._look: asyncio.Future[frozenset[str]] | None = None
        self._next_look: asyncio.Future[frozenset[str]] | None = None

    def begin(self) -> None:
        """Say that a cycle begins: from here on the registry is read."""
        self._begun += 1

    def tell(self) -> None:
        """Say that other versions are loaded than before."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                listener()

    def end(self) -> None:
        """Say that the cycle has loaded all that it will."""
        self._ended = self._begun
        self.tell()

    def close(self) -> None:
        """Let nobody wait any more, for the server is stopping."""
        self._is_closed = True
        self.tell()

    async def wait(self, version: str, is_loaded: Callable[[], bool], seconds: float) -> bool:
        """Return True once a version is loaded, and False as soon as it is clear that it will not be.

        Raises
        ------
        TimeoutError
            If neither is the case after so many seconds.
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
        if version not in await self._looked():
            return is_loaded()  # it may have come and be dropped from the registry
        seen = self._begun  # a later cycle sees what this look has seen
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

    async def _looked(self) -> frozenset[str]:
        """Return what a look at the registry finds that begins after this call; all who wait for one share it.

        Nothing where the registry hangs, for else whoever makes up names of versions would hold connections open.
        """
        if self._next_look is None:
            self._next_look = asyncio.ensure_future(self._look_next(self._look))
        look = self._next_look
        await asyncio.wait({look}, timeout=_MAX_LOOK_S)
        return look.result() if look.done() else frozenset()

    async def _look_next(self, before: asyncio.Future[frozenset[str]] | None) -> frozenset[str]:
        if before is not None:
            await asyncio.wait({before})
        await asyncio.sleep(max(0.0, self._looked_s + _LOOK_S - time.monotonic()))
        self._look, self._next_look = self._next_look, None
        self._looked_s = time.monotonic()
        return await detached(self._coming)
