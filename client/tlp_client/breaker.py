"""A circuit breaker: after repeated failures, stop asking for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class CircuitBreaker:
    """Says whether a call should be tried. Thread-safe.

    Closed, it lets every call through. After `failures` failures in a row it opens: no call for a pause, then one
    call to try. If that fails the pause doubles, if it succeeds the breaker closes.

    Parameters
    ----------
    failures : int
        Failures in a row that open it.
    first_pause_s, max_pause_s : float
        Pause after it opens, and the bound of its doubling.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(
        self,
        failures: int = 3,
        first_pause_s: float = 1.0,
        max_pause_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threshold = failures
        self._first_pause_s = first_pause_s
        self._max_pause_s = max_pause_s
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._pause_s = first_pause_s
        self._closed_again_at = 0.0

    def allows(self) -> bool:
        """Return whether to try now. While it is open, a True is given once a pause, to one caller."""
        with self._lock:
            if self._failures < self._threshold:
                return True
            now = self._clock()
            if now < self._closed_again_at:
                return False
            self._closed_again_at = now + self._pause_s  # others wait for this one's outcome
            return True

    def succeeded(self) -> None:
        """Close the breaker."""
        with self._lock:
            self._failures = 0
            self._pause_s = self._first_pause_s

    def failed(self) -> None:
        """Count a failure, and open or stay open."""
        with self._lock:
            self._failures += 1
            if self._failures > self._threshold:
                self._pause_s = min(2 * self._pause_s, self._max_pause_s)
            if self._failures >= self._threshold:
                self._closed_again_at = self._clock() + self._pause_s
