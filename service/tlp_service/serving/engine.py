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

#: Bytes above which a body counts as large: reading it takes far longer than a search's call of 2,048
#: candidates.
LARGE = 1 << 20
#: Assumed rate of reading bodies in bytes per second, until it has been measured.
_READ_BYTES_PER_S = 1e7


@dataclass(frozen=True, slots=True)
class Engine:
    """The loaded versions, their follower, and the threads that read bodies and score candidates."""

    versions: Versions
    registry: Registry
    follower: Follower | None  # None if the settings name a fixed version
    calibration: Calibration
    executor: Executor[ScoringWork]
    readers: Executor[Reading[Any]]
    heavy_readers: Executor[Reading[Any]]
    measurement_readers: Executor[Reading[Any]]

    def readers_of(self, nbytes: int, is_measured: bool = False) -> Executor[Reading[Any]]:
        """Return the executor that reads bodies of a size.

        Large bodies delay only each other, and measurements never delay predict requests.
        """
        if is_measured:
            return self.measurement_readers
        return self.readers if nbytes <= LARGE else self.heavy_readers

    @property
    def _executors(self) -> tuple[Executor[Any], ...]:
        return self.readers, self.heavy_readers, self.measurement_readers, self.executor

    @property
    def is_busy(self) -> bool:
        """Whether any request is queued, being read or being scored."""
        return any(executor.is_busy for executor in self._executors)

    def drain(self, seconds: float) -> None:
        """Refuse new requests, those that have not begun, and those that cannot be done within `seconds`."""
        if self.follower is not None:
            self.follower.drain()
        for executor in self._executors:
            executor.drain(seconds)

    def close(self) -> None:
        """End all threads."""
        for executor in self._executors:
            executor.close()


def start_engine(settings: Settings) -> Engine:
    """Load the first version, and start the threads that score with its fastest settings.

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
    # Searches wait for scores, but no client waits for the acknowledgement of measurements.
    give_way = GiveWay(lambda: executor.is_busy or readers.is_busy)
    measurement_readers = _start_reader(give_way)
    return Engine(
        versions, registry, follower, calibration, executor, readers, heavy_readers, measurement_readers
    )


def _start_reader(before: Callable[[], None] = lambda: None) -> Executor[Reading[Any]]:
    # One thread, because of the GIL. The number of queued bodies is bounded by the memory for requests.
    bodies: FairQueue[Reading[Any]] = FairQueue(
        sys.maxsize, sys.maxsize, UNITS_PER_BYTE * _READ_BYTES_PER_S, unit="units of reading"
    )
    return Executor(bodies, threads=1, chunk=sys.maxsize, name="read", before=before)
