"""Background work that yields to work with waiting clients."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Maximum seconds for which background work is delayed. After that it runs undelayed for as long.
_TURN_S = 0.2
#: Seconds between two checks for other work.
_LOOK_S = 0.001


class GiveWay:
    """Delays background work while there is other work.

    The delay takes at most half of the time, so a server that is always busy does the background work, too.

    Parameters
    ----------
    is_busy : callable
        Returns whether there is other work.
    clock, sleep : callable
        Replacements for `time.monotonic` and `time.sleep`; for tests.
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
        # Summed over calls. Otherwise many short pieces of other work would delay this work for ever.
        self._waited = 0.0

    def __call__(self) -> None:
        """Wait until background work may run."""
        came = self._clock()
        if came < self._own_until:
            return
        if not self._is_busy():
            # This work was not delayed since the last call, so reduce its accumulated delay.
            self._waited = max(0.0, self._waited - (came - self._last))
        while self._is_busy():
            if self._waited + self._clock() - came >= _TURN_S:
                self._own_until, self._waited = self._clock() + _TURN_S, 0.0
                break
            self._sleep(_LOOK_S)
        else:
            self._waited += self._clock() - came
        self._last = self._clock()
