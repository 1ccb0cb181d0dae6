"""Returns memory to the operating system after a burst of large requests, while the server is idle."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable

#: Minimum growth of the resident memory in bytes for which a garbage collection is worth its time.
_GROWTH = 16 << 20
#: Option of glibc's ``mallopt``, and its value: the size in bytes from which allocations are mapped separately.
#: By default, glibc raises this threshold up to 32 MiB when large blocks are freed, and the heap then keeps the
#: memory of large bodies.
_M_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 256 << 10


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def map_large_allocations() -> None:
    """Make the C library return large allocations to the system as soon as they are freed, if it supports that."""
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


class IdleMemory:
    """Collects garbage and trims the heap when the process is idle and has grown.

    Parameters
    ----------
    is_busy : callable
        Returns whether any request is in progress.
    resident : callable
        Returns the resident memory in bytes.
    """

    def __init__(self, is_busy: Callable[[], bool], resident: Callable[[], int] = resident_bytes) -> None:
        self._is_busy = is_busy
        self._resident = resident
        self._floor = resident()
        self._trim = getattr(_libc(), "malloc_trim", None)

    def give_back(self) -> bool:
        """Return memory to the system if it has grown and no request waits; return whether that was done."""
        resident = self._resident()
        self._floor = min(self._floor, resident)
        if self._is_busy() or resident - self._floor < _GROWTH:
            return False
        gc.collect()
        if self._trim is not None:
            self._trim(0)
        self._floor = self._resident()
        return True


def _libc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # the system has no such library
        return None
