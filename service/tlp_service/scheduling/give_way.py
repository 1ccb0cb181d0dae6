"""Work that nobody waits for, held up while there is other work."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds that work waits before it has as long for itself, whatever else there is.
_TURN_S = 0.2
#: Seconds between two looks.
_LOOK_S = 0.001


class GiveWay:
    """Waits while there is other work; half of the time at most, so a server that never rests does this work, too.

    Parameters
    ----------
    is_busy : callable
        Returns whether there is other work.
    clock, sleep : callable
        Seconds, monotonic, and to let some pass.
    """

    def __init__(
        self,
        is_busy: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._is_busy = is_busy
        self._clock = clock
        self._sleep = sleep
        self._own_until = self._last = float("-inf")
        # Added up over calls: else other work in short pieces, with a moment between two, would always go first.
        self._waited = 0.0

    def __call__(self) -> None:
        """Wait for a turn."""
        came = self._clock()
        if came < self._own_until:
            return
        if not self._is_busy():
            # Since the last call it was not kept from work.
            self._waited = max(0.0, self._waited - (came - self._last))
        while self._is_busy():
            if self._waited + self._clock() - came >= _TURN_S:
                self._own_until, self._waited = self._clock() + _TURN_S, 0.0
                break
            self._sleep(_LOOK_S)
        else:
            self._waited += self._clock() - came
        self._last = self._clock()
