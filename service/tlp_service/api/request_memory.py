"""Admission control by memory: counts and bounds the memory of all requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from tlp_service.api.decoded import DecodeMemory
from tlp_service.errors import QueueFull

#: Bytes up to which a request counts as small. Requests of a search are smaller. A share of the memory is
#: kept for them.
_SMALL_REQUEST = 4 << 20


class BodyMemory:
    """Counts the memory of all requests, from the first byte of the body until the answer. Thread-safe.

    Parameters
    ----------
    max_bytes : int
        Maximum bytes of all requests. A quarter is for small requests, so that large ones leave room for
        them. A large request may take more while there is no other large one. Small ones have their quarter
        even then.
    decoding : DecodeMemory
        Bounds the memory of decoded bodies, which is counted separately.
    """

    def __init__(self, max_bytes: int, decoding: DecodeMemory) -> None:
        self.decoding = decoding
        self._max_bytes = max_bytes
        self._max_small = max_bytes // 4
        self._max_large = max_bytes - self._max_small
        self._held_small = self._held_large = 0
        self._lock = Lock()

    @property
    def held(self) -> int:
        """Bytes that all requests take now."""
        return self._held_small + self._held_large

    @contextmanager
    def reserve(self) -> Iterator[Reservation]:
        """Lend the reservation of one request, which ends with the context."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            reservation.end()

    def change(self, more: int, already: int) -> bool:
        """Add bytes to a request that holds `already` bytes; return whether there was room."""
        total = already + more
        was_large, is_large = already > _SMALL_REQUEST, total > _SMALL_REQUEST
        with self._lock:
            if more > 0 and not self._has_room(more, total, already if was_large else 0, is_large):
                return False
            # When a request becomes large, all of its bytes count as those of a large one.
            if was_large:
                self._held_large -= already
            else:
                self._held_small -= already
            if is_large:
                self._held_large += total
            else:
                self._held_small += total
            return True

    def _has_room(self, more: int, total: int, was_large_with: int, is_large: bool) -> bool:
        held = self._held_small + self._held_large
        if is_large:
            is_only_large_one = self._held_large == was_large_with
            return is_only_large_one or held + more <= self._max_large
        is_only_one = held + more == total
        return is_only_one or held + more <= self._max_bytes or self._held_small + more <= self._max_small


class Reservation:
    """The memory of one request. Thread-safe: the event loop and the thread that reads the request share it.

    Parameters
    ----------
    memory : BodyMemory
        The memory of all requests.
    """

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._bytes = 0
        self._has_ended = False
        self._lock = Lock()

    @property
    def decoding(self) -> DecodeMemory:
        """The bound of the memory of decoded bodies."""
        return self._memory.decoding

    def grow(self, more: int) -> bool:
        """Add bytes and return True if there is room for them; after `end` there is none."""
        with self._lock:
            has_room = not self._has_ended and self._memory.change(more, self._bytes)
            self._bytes += more if has_room else 0
        return has_room

    def need(self, more: int) -> None:
        """Add bytes.

        Raises
        ------
        QueueFull
            If other requests leave no room for them.
        """
        if not self.grow(more):
            raise QueueFull("other requests leave no memory for this one", retry_after=1)

    def shrink(self, less: int) -> None:
        """Subtract bytes."""
        with self._lock:
            less = min(less, self._bytes)  # after `end` nothing is left to subtract
            self._memory.change(-less, self._bytes)
            self._bytes -= less

    def release(self) -> None:
        """Subtract all bytes."""
        self.shrink(self._bytes)

    def end(self) -> None:
        """Release all bytes and refuse further ones.

        A thread may still work on the request after its client has left.
        """
        with self._lock:
            self._has_ended = True
        self.release()
