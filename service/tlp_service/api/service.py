"""What the routes share, and how a request waits for work that is done in other threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tlp_service.api.body import BodyMemory
from tlp_service.errors import DeadlinePassed
from tlp_service.measurements.stream import MeasurementStream
from tlp_service.monitoring import Metrics
from tlp_service.scheduling.executor import Executor, Work
from tlp_service.scoring.calibration import Calibration
from tlp_service.scoring.candidates import Candidates
from tlp_service.scoring.follower import Follower
from tlp_service.scoring.versions import Versions
from tlp_service.settings import Settings
from tlp_service.versions.registry import Registry

T = TypeVar("T")

#: Bytes of a body that takes less time to read than to hand to a thread. So small requests never wait for large ones.
_SMALL = 16 << 10
#: Bytes of a body that takes longer to read than a search's call of 2,048 candidates by far.
_LARGE = 1 << 20


class Reading(Work[Any]):
    """The reading of a body, as work for an `Executor`; a unit is a byte.

    Parameters
    ----------
    read : callable
        Reads it, and returns what it says.
    size : int
        Bytes of the body.
    """

    def __init__(self, read: Callable[[], Any], size: int) -> None:
        super().__init__()
        self._read: Callable[[], Any] | None = read
        self._size = size
        self._said: Any = None

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return self._size

    @property
    def nbytes(self) -> int:
        """0, for `BodyMemory` counts them since they began to arrive."""
        return 0

    def run(self, first: int, count: int) -> None:
        """Read it, all at once, and let go of it."""
        read, self._read = self._read, None
        assert read is not None, "there is but one slice"
        self._said = read()

    def result(self) -> Any:
        """Return what it says."""
        said, self._said = self._said, None
        return said


@dataclass(frozen=True, slots=True)
class Engine:
    """The loaded versions, who keeps them as the registry says, and the threads that read bodies and score with them."""

    versions: Versions
    registry: Registry
    follower: Follower | None  # None where one version serves whatever the registry says
    calibration: Calibration
    executor: Executor[Candidates]
    readers: Executor[Reading]
    heavy_readers: Executor[Reading]
    measurement_readers: Executor[Reading]

    def readers_of(self, nbytes: int, is_measured: bool = False) -> Executor[Reading]:
        """Return who reads bodies of that size: the very large ones keep only each other waiting, and measurements no predict."""
        if is_measured:
            return self.measurement_readers
        return self.readers if nbytes <= _LARGE else self.heavy_readers

    def drain(self, seconds: float) -> None:
        """Refuse what comes, what has not begun, and what would not be done in so many seconds."""
        for executor in (self.readers, self.heavy_readers, self.measurement_readers, self.executor):
            executor.drain(seconds)

    def close(self) -> None:
        """End all threads."""
        for executor in (self.readers, self.heavy_readers, self.measurement_readers, self.executor):
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

    async def read(self, engine: Engine, read: Callable[[], T], size: int, is_measured: bool = False) -> T:
        """Return what `read` makes of a body of `size` bytes; large ones wait for their turn."""
        if size <= _SMALL:
            self.left()
            return read()
        said: T = await self.wait(engine.readers_of(size, is_measured), Reading(read, size))
        return said
