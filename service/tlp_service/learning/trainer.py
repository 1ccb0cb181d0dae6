"""``tlp trainer``: learns when enough was measured, beside the servers and at a lower priority than theirs."""

from __future__ import annotations

import importlib.util
import logging
import signal
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from redis.exceptions import RedisError

from tlp_service.errors import BadSettings, ServiceFault
from tlp_service.learning.beginning import begin
from tlp_service.learning.lease import leased
from tlp_service.measurements.stream import QUALITY
from tlp_service.quality_metrics import decode_quality
from tlp_service.records.store import RecordStore
from tlp_service.redis_url import connect
from tlp_service.settings import Settings
from tlp_service.versions.hints import tell
from tlp_service.versions.registry import Registry

log = logging.getLogger(__name__)

#: Who trains, and platform -> how many records there were when it last learned.
LEASE, TRAINED = "{tlp}:trainer", "{tlp}:trained"
#: Seconds between two looks at the store.
_LOOK_S = 5.0
#: Behind whoever scores, but not for good: where workers keep all cores busy, it has to get on, too.
_NICENESS = 5


class Trainer:
    """Makes a step of learning for the platforms on which enough was measured since their last one.

    Parameters
    ----------
    url : str
        Of the Redis that keeps the lease, and the counts of records at the last steps.
    store : RecordStore
        What is learned from.
    registry : Registry
        Where versions go.
    records : int
        New records at which a platform learns; a quarter is enough where the serving version's error drifts.
    seconds : float
        Seconds after the last step at which all platforms with new records learn.
    threads : int
        Threads that it computes with.
    """

    def __init__(
        self, url: str, store: RecordStore, registry: Registry, records: int, seconds: float, threads: int = 1
    ) -> None:
        self._url = url
        self._client: Any = connect(url, timeout_s=10, encoding_errors="replace")
        self._store = store
        self._registry = registry
        self._records = records
        self._seconds = seconds
        self._threads = threads
        self._began_s = time.monotonic()

    def look(self) -> bool:
        """Make a step if a platform is due and no other trainer is at it; return whether one was made.

        Raises
        ------
        RedisError, OSError
            If Redis, store or registry cannot be reached.
        """
        counts = self._store.counts()
        if not self._due(counts):
            return False
        with leased(self._client, LEASE) as lease:
            if lease is None or not (due := self._due(counts)):  # another one was faster
                return False
            # Here, since it brings torch: until the first step this process is small.
            import torch

            from tlp_service.learning import learn

            torch.set_num_threads(self._threads)
            started = time.monotonic()
            outcome = learn.learn(self._store, self._registry, due, may_publish=lease.is_held)
            log.info(
                "%s (%s; %.0f s): %s",
                outcome.version or "no version",
                ", ".join(f"{platform}: {counts[platform]} records" for platform in due),
                time.monotonic() - started,
                outcome.reason,
            )
            if lease.is_held():
                self._client.hset(TRAINED, mapping={platform: counts[platform] for platform in due})
        self._began_s = time.monotonic()
        if outcome.is_accepted:
            tell(self._url, outcome.version)
        return True

    def run(self, is_stopping: threading.Event) -> None:
        """Look again and again until an event is set; what cannot be reached is tried again."""
        while not is_stopping.wait(_LOOK_S):
            try:
                self.look()
            except (RedisError, OSError, ServiceFault) as error:
                log.warning("nothing is learned now: %s", error)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _due(self, counts: Mapping[str, int]) -> list[str]:
        """Return the platforms that are to learn now."""
        trained = {platform: int(count) for platform, count in self._client.hgetall(TRAINED).items()}
        # Rows that stood in two files were counted twice, until these were made one.
        if fewer := {p: counts[p] for p in trained.keys() & counts.keys() if counts[p] < trained[p]}:
            self._client.hset(TRAINED, mapping=fewer)
        new = {p: max(0, count - trained.get(p, 0)) for p, count in counts.items()}
        if time.monotonic() - self._began_s >= self._seconds:
            return [platform for platform in new if new[platform] > 0]
        drifting = self._drifting()
        needed = {platform: self._records // (4 if platform in drifting else 1) for platform in new}
        return [platform for platform in new if new[platform] >= max(1, needed[platform])]

    def _drifting(self) -> set[str]:
        """Return the platforms on which the serving version orders what comes in worse than it did at the gate."""
        told = self._client.get(QUALITY)
        platforms = decode_quality(None if told is None else told.encode())["platforms"]
        return {
            platform
            for platform, versions in platforms.items()
            if any(figures["serving"] and figures.get("drifting") for figures in versions.values())
        }


def _leave(number: int, frame: FrameType | None) -> None:
    """Leave whatever is being trained: the next trainer begins anew from the store."""
    for again in (signal.SIGINT, signal.SIGTERM):
        signal.signal(again, signal.SIG_IGN)
    raise SystemExit(0)


def run_trainer(settings: Settings, once: bool) -> int:
    """Train until a signal comes, or look once; return the exit status.

    Raises
    ------
    BadSettings, BadRecords
        See `begin`; the first also if Redis cannot be reached at the only look.
    ModuleNotFoundError
        If torch is not installed: that it is imported later must not hide it.
    """
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'")
    url, store = begin(settings, _NICENESS)
    registry = Registry(settings.registry_url)
    trainer = Trainer(
        url, store, registry, settings.train_records, settings.train_s, settings.trainer_threads
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    logging.getLogger("tlp_service.training.fit").setLevel(logging.WARNING)  # hundreds of epochs a step
    try:
        if not once:
            trainer.run(threading.Event())
        elif not trainer.look():
            log.info("nothing is to be learned: too little is new, or another trainer is at it")
    except RedisError as error:  # `run` goes on
        raise BadSettings(f"TLP_REDIS_URL: {error}") from None
    finally:
        trainer.close()
    return 0
