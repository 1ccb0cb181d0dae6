"""What the routes share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
import anyio.to_thread

from tlp_service.measurements.stream import MeasurementStream
from tlp_service.monitoring import Metrics
from tlp_service.scoring.calibration import Calibration
from tlp_service.scoring.executor import Executor
from tlp_service.scoring.scorer import Scorer
from tlp_service.settings import Settings

T = TypeVar("T")

#: Bytes of a body that takes less time to read than to hand to a thread. So small requests never wait for large ones.
_SMALL = 16 << 10


@dataclass(frozen=True, slots=True)
class Engine:
    """The loaded version, and the threads that score with it."""

    scorer: Scorer
    calibration: Calibration
    executor: Executor


@dataclass(frozen=True, slots=True)
class Service:
    """Everything a route needs."""

    settings: Settings
    engine: Engine
    stream: MeasurementStream
    metrics: Metrics
    readers: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))

    async def compute(self, work: Callable[[], T], nbytes: int) -> T:
        """Return what `work` returns, computed in a thread if it works on so many bytes that others would feel it."""
        if nbytes <= _SMALL:
            return work()
        return await anyio.to_thread.run_sync(work, limiter=self.readers)
