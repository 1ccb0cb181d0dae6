"""The objects that routes share, and waiting for work in other threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tlp_service.api.refusals import RefusalLog
from tlp_service.api.request_memory import BodyMemory
from tlp_service.errors import DeadlinePassed
from tlp_service.measurements.stream import MeasurementStream
from tlp_service.monitoring import Metrics
from tlp_service.scheduling.executor import Executor, Work
from tlp_service.scheduling.reading import SLICE, UNITS_PER_BYTE, Reading
from tlp_service.scheduling.steps import Steps
from tlp_service.serving.engine import LARGE, Engine
from tlp_service.settings import Settings

T = TypeVar("T")

#: Bytes up to which decoding a body takes less time than handing it to a thread. So small requests never wait
#: for large ones.
_SMALL = 16 << 10
#: Upper bound on the units of the first slice, about 160 ms: those of the largest body that does not count as
#: large.
_MAX_FIRST_SLICE = UNITS_PER_BYTE * LARGE


@dataclass(frozen=True, slots=True)
class Service:
    """Everything a route needs."""

    settings: Settings
    engine: Engine
    stream: MeasurementStream
    metrics: Metrics
    bodies: BodyMemory
    redis_url: str
    refusals: RefusalLog = field(default_factory=RefusalLog)


@dataclass(frozen=True, slots=True)
class Caller:
    """The name and the deadline of the client that sent a request.

    Parameters
    ----------
    name : str
        Name of the client, for fair queueing.
    deadline : float or None
        Time on the monotonic clock after which the client no longer waits; None for no deadline.
    """

    name: str
    deadline: float | None

    def left(self) -> float | None:
        """Return the seconds until the deadline.

        Raises
        ------
        DeadlinePassed
            If the deadline has passed, so that further work would be useless.
        """
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlinePassed("the deadline passed before the request could be worked on")
        return left

    async def wait(self, executor: Executor[Any], work: Work[T]) -> T:
        """Run work on an executor and return its result.

        Raises
        ------
        QueueFull, NotReady, DeadlinePassed
            See `Executor.submit`. `DeadlinePassed` also if the work is not done by the deadline.
        """
        left = self.left()
        job = executor.submit(work, self.name, left)
        result = asyncio.wrap_future(work.future)
        try:
            await asyncio.wait({result}, timeout=left)
            if not result.done():
                raise DeadlinePassed("the deadline passed before the request was done")
            return result.result()
        finally:
            # The client no longer waits, for whatever reason, so drop the work and its result.
            executor.withdraw(job)
            result.cancel()
            # An exception refers to this frame, and these variables refer to the exception: break the cycle,
            # which would keep what was read until the next full garbage collection.
            del work, job, result

    async def read_in_steps(
        self,
        engine: Engine,
        read: Callable[[], Steps[T]],
        size: int,
        units: int | None = None,
        is_measured: bool = False,
    ) -> T:
        """Return the result of the steps of `read` for a body of `size` bytes.

        Small bodies with little work are read at once, and all others are queued.

        Parameters
        ----------
        units : int, optional
            Units of work known in advance, if the work is not the decoding of the body.
        is_measured : bool
            Whether the body holds measurements. They are read in short slices, because predict calls go
            first.
        """
        if units is None and not is_measured:
            reading = Reading(read(), size, expected=min(UNITS_PER_BYTE * size, _MAX_FIRST_SLICE))
        else:
            reading = Reading(read(), units or 1)
        if size <= _SMALL:
            self.left()
            if reading.advance(SLICE):
                return reading.result()
        return await self.wait(engine.readers_of(size, is_measured), reading)
