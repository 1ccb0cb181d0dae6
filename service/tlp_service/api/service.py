"""What the routes share: the loaded version, the stream, the metrics, and the place to wait for a score."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio
import anyio.to_thread

from tlp_service.errors import DeadlinePassed, NotReady, QueueFull
from tlp_service.measurements.stream import MeasurementStream
from tlp_service.monitoring import Metrics
from tlp_service.scoring.scorer import Scorer
from tlp_service.settings import Settings

T = TypeVar("T")


class ScoringQueue:
    """Lets one request at a time use the processor, in order of arrival.

    Parameters
    ----------
    max_waiting : int
        Requests that may wait; one more gets 429.
    clock : callable
        Seconds, monotonic; injected so that tests need not wait.
    """

    def __init__(self, max_waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limiter = anyio.CapacityLimiter(1)
        self._max_waiting = max_waiting
        self._clock = clock
        self._seconds_each = 0.1  # moving average, for Retry-After
        self._is_draining = False

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return self._limiter.statistics().tasks_waiting

    def drain(self) -> None:
        """Answer what waits and what comes with 503; what runs ends as usual."""
        self._is_draining = True

    async def run(self, work: Callable[[Callable[[], None]], T], deadline_s: float | None) -> T:
        """Run `work` in a thread when its turn comes.

        `work` gets a function to call now and then, which ends it by `DeadlinePassed` once nobody waits.

        Parameters
        ----------
        deadline_s : float or None
            Seconds from now after which nobody waits for the result.

        Raises
        ------
        QueueFull
            If too many requests wait.
        DeadlinePassed
            If its turn comes too late, or it is not done by then.
        NotReady
            If the server is stopping.
        """
        if self.waiting >= self._max_waiting:
            seconds = max(1, round(self.waiting * self._seconds_each))
            raise QueueFull(f"{self.waiting} requests wait already", retry_after=seconds)
        arrived = self._clock()

        def proceed() -> None:
            if deadline_s is not None and self._clock() - arrived > deadline_s:
                raise DeadlinePassed(f"the deadline of {deadline_s:g} s passed before the request was scored")

        def timed() -> T:
            if self._is_draining:
                raise NotReady("the server is stopping", retry_after=5)
            proceed()
            started = self._clock()
            result = work(proceed)
            self._seconds_each += 0.1 * (self._clock() - started - self._seconds_each)
            return result

        return await anyio.to_thread.run_sync(timed, limiter=self._limiter)


@dataclass(frozen=True, slots=True)
class Service:
    """Everything a route needs."""

    settings: Settings
    scorer: Scorer
    stream: MeasurementStream
    metrics: Metrics
    queue: ScoringQueue
