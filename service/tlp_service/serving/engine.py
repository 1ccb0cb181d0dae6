"""The engine of a server: the loaded versions, and the threads that read bodies and score with them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tlp_service.errors import BadSettings
from tlp_service.inference.work import ScoringWork
from tlp_service.scheduling.executor import Executor
from tlp_service.scheduling.fair_queue import FairQueue
from tlp_service.scheduling.give_way import GiveWay
from tlp_service.scheduling.reading import UNITS_PER_BYTE, Reading
from tlp_service.serving.calibration import Calibration
from tlp_service.serving.first import load_first
from tlp_service.serving.follower import Follower
from tlp_service.serving.loader import VersionLoader
from tlp_service.serving.versions import Versions
from tlp_service.settings import Settings
from tlp_service.versions.registry import Registry

#: Bytes above which a body counts as large: reading it takes far longer than a search's call of 2,048 candidates.
LARGE = 1 << 20
#: Bytes per second that are read, until it has been measured.
_READ_BYTES_PER_S = 1e7


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
        return self.readers if nbytes <= LARGE else self.heavy_readers

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


def start_engine(settings: Settings) -> Engine:
    """Load the first version and start the threads that score with it, in the way that is fastest here.

    Raises
    ------
    BadSettings, BadVersion
        See `load_first`.
    """
    try:
        registry = Registry(settings.registry_url)
    except OSError as error:
        raise BadSettings(f"TLP_REGISTRY={settings.registry_url}: {error}") from None
    scorer, calibration = load_first(settings, registry)
    versions = Versions(scorer)
    queue: FairQueue[ScoringWork] = FairQueue(
        settings.max_waiting,
        settings.max_waiting_mib << 20,
        calibration.candidates_per_s,
        mixes=scorer.mixes,
    )
    follower = None
    if settings.model is None:
        load = VersionLoader(settings.device, calibration.threads)
        follower = Follower(
            registry, versions, load, settings.kept_versions, settings.registry_poll_s, load.stop
        )
    executor = Executor(queue, calibration.executors, calibration.chunk)
    readers, heavy_readers = _start_reader(), _start_reader()
    # A search waits for its scores; for an acknowledgement nobody does.
    give_way = GiveWay(lambda: executor.is_busy or readers.is_busy)
    measurement_readers = _start_reader(give_way)
    return Engine(
        versions, registry, follower, calibration, executor, readers, heavy_readers, measurement_readers
    )


def _start_reader(before: Callable[[], None] = lambda: None) -> Executor[Reading[Any]]:
    # One thread: several would have one interpreter among them. How many bodies wait is bounded by their memory.
    bodies: FairQueue[Reading[Any]] = FairQueue(
        sys.maxsize, sys.maxsize, UNITS_PER_BYTE * _READ_BYTES_PER_S, unit="units of reading"
    )
    return Executor(bodies, threads=1, chunk=sys.maxsize, name="read", before=before)
