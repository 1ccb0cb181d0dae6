"""Work that nobody waits for, held up while there is other work."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds that work waits at most, and then goes on whatever else there is: half of the time is its.
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
        self._own_until = float("-inf")

    def __call__(self) -> None:
        """Wait for a turn."""
        if self._clock() < self._own_until:
            return
        end = self._clock() + _TURN_S
        while self._is_busy():
            if self._clock() >= end:
                self._own_until = self._clock() + _TURN_S
                return
            self._sleep(_LOOK_S)
