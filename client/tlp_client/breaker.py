"""A circuit breaker: after repeated failures it blocks calls for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class CircuitBreaker:
    """Decides whether a call should be tried. Thread-safe.

    While closed, the breaker lets every call through. After `failures` consecutive failures it opens: it
    blocks all calls during a pause, then allows one trial call. If the trial fails, the pause doubles. If it
    succeeds, the breaker closes.

    Parameters
    ----------
    failures : int
        Number of consecutive failures that open the breaker.
    first_pause_s, max_pause_s : float
        Seconds of the first pause, and the maximum to which pauses double.
    clock : callable
        Returns the current time in seconds; must be monotonic.
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
        """Return whether to try a call now. While the breaker is open, it allows one caller per pause."""
        with self._lock:
            if self._failures < self._threshold:
                return True
            now = self._clock()
            if now < self._closed_again_at:
                return False
            self._closed_again_at = now + self._pause_s  # other callers wait for the outcome of this trial
            return True

    def succeeded(self) -> None:
        """Close the breaker."""
        with self._lock:
            self._failures = 0
            self._pause_s = self._first_pause_s

    def failed(self) -> None:
        """Count a failure, and open the breaker or extend its pause if there were too many."""
        with self._lock:
            self._failures += 1
            if self._failures > self._threshold:
                self._pause_s = min(2 * self._pause_s, self._max_pause_s)
            if self._failures >= self._threshold:
                self._closed_again_at = self._clock() + self._pause_s
