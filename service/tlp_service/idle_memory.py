"""Gives memory back that a burst of large requests has left behind, in a moment without load."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable

#: Growth of the resident memory, in bytes, at which it is worth a moment to give some back.
_GROWTH = 16 << 20
#: Option of glibc's ``mallopt``, and bytes from which on it maps each allocation by itself. By default that limit grows
#: up to 32 MiB with what is freed, and then the heap keeps what large bodies leave.
_M_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 256 << 10


def resident_bytes() -> int:
    """Return the resident memory of this process, 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def map_large_allocations() -> None:
    """Have large allocations given back to the system as soon as they are freed, where the C library can."""
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


class IdleMemory:
    """Collects garbage and trims the heap when the process is idle and has grown.

    Parameters
    ----------
    is_busy : callable
        Whether somebody waits for the processor.
    resident : callable
        Resident memory in bytes.
    """

    def __init__(self, is_busy: Callable[[], bool], resident: Callable[[], int] = resident_bytes) -> None:
        self._is_busy = is_busy
        self._resident = resident
        self._floor = resident()
        self._trim = getattr(_libc(), "malloc_trim", None)

    def give_back(self) -> bool:
        """Give memory back if it is worth it and keeps nobody waiting; return whether that was so."""
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
    except (OSError, TypeError):  # on systems without one that is loaded
        return None
