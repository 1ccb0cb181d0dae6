"""What the routes share, and how a request waits for work that is done in other threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tlp_service.api.refusals import RefusalLog
from tlp_service.api.request_memory import BodyMemory
from tlp_service.engine.work import ScoringWork
from tlp_service.errors import DeadlinePassed
from tlp_service.measurements.stream import MeasurementStream
from tlp_service.monitoring import Metrics
from tlp_service.scheduling.executor import Executor, Work
from tlp_service.scheduling.steps import Steps, advance
from tlp_service.serving.calibration import Calibration
from tlp_service.serving.follower import Follower
from tlp_service.serving.versions import Versions
from tlp_service.settings import Settings
from tlp_service.versions.registry import Registry

T = TypeVar("T")

#: Bytes up to which decoding a body takes less time than handing it to a thread. So small requests never wait for large ones.
_SMALL = 16 << 10
#: Units of work (see `tlp_service.scheduling.steps`), about 5 ms: for a small body on the event loop, and per slice in a thread.
_INLINE = _SLICE = 1 << 18
#: Units of work per byte of an ordinary body. The first slice has room for all of them, so ordinary bodies are read
#: without interruption, and the queue can estimate how long the waiting ones will take.
UNITS_PER_BYTE = 8
#: Bytes above which a body counts as large: reading it takes far longer than a search's call of 2,048 candidates.
_LARGE = 1 << 20
#: Upper bound on the units of the first slice, about 160 ms: those of the largest body that does not count as large.
_MAX_FIRST_SLICE = UNITS_PER_BYTE * _LARGE


class Reading(Work[T]):
    """Reading a body, or computing from what was read, as work for an `Executor` with one thread.

    Parameters
    ----------
    steps : Steps
        Compute the result; other requests get their turn between two slices of them.
    size : int
        Units of work that are known before the start (see `tlp_service.scheduling.steps`), such as the bytes of the body.
    expected : int, optional
        Units that the first slice may take.
    """

    def __init__(self, steps: Steps[T], size: int, expected: int = 0) -> None:
        super().__init__()
        self._expected = expected
        self._steps = steps
        self._next = size  # units of the next step
        self._said: Any = None

    @property
    def size(self) -> int:
        """Units of work of the next slice."""
        return max(self._next, self._expected)

    @property
    def nbytes(self) -> int:
        """0, since `BodyMemory` counts the bytes of bodies."""
        return 0

    def run(self, first: int, count: int) -> None:
        """Do the next slice."""
        budget, self._expected = max(_SLICE, self._expected), 0
        self.advance(budget)

    def advance(self, budget: int) -> bool:
        """Do at most `budget` units of work, but at least one step; return whether all work is done."""
        self._next, self._said = advance(self._steps, budget, self._next)
        self.more = self._next
        return not self._next

    def result(self) -> T:
        """Return the result, once."""
        said: T = self._said
        self._said = None
        return said


@dataclass(frozen=True, slots=True)
class Engine:
    """The loaded versions, who keeps them as the registry says, and the threads that read bodies and score with them."""

    versions: Versions
    registry: Registry
    follower: Follower | None  # None where one version serves whatever the registry says
    calibration: Calibration
    executor: Executor[ScoringWork]
    readers: Executor[Reading[Any]]
    heavy_readers: Executor[Reading[Any]]
    measurement_readers: Executor[Reading[Any]]

    def readers_of(self, nbytes: int, is_measured: bool = False) -> Executor[Reading[Any]]:
        """Return who reads bodies of that size: the very large ones keep only each other waiting, and measurements no predict."""
        if is_measured:
            return self.measurement_readers
        return self.readers if nbytes <= _LARGE else self.heavy_readers

    @property
    def _executors(self) -> tuple[Executor[Any], ...]:
        return self.readers, self.heavy_readers, self.measurement_readers, self.executor

    @property
    def is_busy(self) -> bool:
        """Whether any request is being read or scored, or waits for that."""
        return any(executor.is_busy for executor in self._executors)

    def drain(self, seconds: float) -> None:
        """Refuse what comes, what has not begun, and what would not be done in so many seconds."""
        if self.follower is not None:
            self.follower.drain()
        for executor in self._executors:
            executor.drain(seconds)

    def close(self) -> None:
        """End all threads."""
        for executor in self._executors:
            executor.close()


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
    """In whose name a request waits, and how long.

    Parameters
    ----------
    name : str
        Of the client.
    deadline : float or None
        Time on the monotonic clock after which it is gone.
    """

    name: str
    deadline: float | None

    def left(self) -> float | None:
        """Return the seconds until the deadline.

        Raises
        ------
        DeadlinePassed
            If there are none: whatever would be done now is for nobody.
        """
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlinePassed("the deadline passed before the request could be worked on")
        return left

    async def wait(self, executor: Executor[Any], work: Work[T]) -> T:
        """Have work done and return its result.

        Raises
        ------
        QueueFull, NotReady, DeadlinePassed
            See `Executor.submit`; the last also if it is not done by the deadline.
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
            # Nobody waits any more, for whatever reason, nor looks at what may still come.
            executor.withdraw(job)
            result.cancel()
            # An exception refers to this frame, and these variables refer to the exception: break the cycle, which would
            # keep what was read until the next full garbage collection.
            del work, job, result

    async def read_in_steps(
        self,
        engine: Engine,
        read: Callable[[], Steps[T]],
        size: int,
        units: int | None = None,
        is_measured: bool = False,
    ) -> T:
        """Return what the steps of `read` make of a body of `size` bytes; all but small bodies with little work are queued.

        Parameters
        ----------
        units : int, optional
            Work that is known from the beginning, where it is not that of decoding the body.
        is_measured : bool
            Whether the body holds measurements. No slice of their reading is a long one, for predict calls go first.
        """
        if units is None and not is_measured:
            reading = Reading(read(), size, expected=min(UNITS_PER_BYTE * size, _MAX_FIRST_SLICE))
        else:
            reading = Reading(read(), units or 1)
        if size <= _SMALL:
            self.left()
            if reading.advance(_INLINE):
                return reading.result()
        return await self.wait(engine.readers_of(size, is_measured), reading)
