"""``tlp trainer``: learns when enough was measured, beside the servers and at the lowest priority."""

from __future__ import annotations

import logging
import signal
import threading
import time
from types import FrameType
from typing import Any

import redis
import torch
from redis.exceptions import RedisError

from tlp_service.errors import ServiceFault
from tlp_service.learning.beginning import begin
from tlp_service.learning.learn import learn
from tlp_service.learning.lease import leased
from tlp_service.records.store import RecordStore
from tlp_service.settings import Settings
from tlp_service.versions.hints import tell
from tlp_service.versions.registry import Registry

log = logging.getLogger(__name__)

#: Who trains, and how many records there were when somebody last did.
LEASE, TRAINED = "{tlp}:trainer", "{tlp}:trained"
#: Seconds between two looks at the store.
_LOOK_S = 5.0
_NICENESS = 19


class Trainer:
    """Makes a step of learning when enough was measured since the last one.

    Parameters
    ----------
    url : str
        Of the Redis that keeps the lease, and the count of records at the last step.
    store : RecordStore
        What is learned from.
    registry : Registry
        Where versions go.
    records : int
        New records at which a step is made.
    seconds : float
        Seconds after the last step at which one is made of fewer.
    """

    def __init__(
        self, url: str, store: RecordStore, registry: Registry, records: int, seconds: float
    ) -> None:
        self._url = url
        self._client: Any = redis.Redis.from_url(url, decode_responses=True, socket_timeout=10)
        self._store = store
        self._registry = registry
        self._records = records
        self._seconds = seconds
        self._began_s = time.monotonic()

    def look(self) -> bool:
        """Make a step if it is time for one and no other trainer is at it; return whether one was made.

        Raises
        ------
        RedisError, OSError
            If Redis, store or registry cannot be reached.
        """
        count = self._store.count()
        if not self._is_time(count):
            return False
        with leased(self._client, LEASE) as lease:
            if lease is None or not self._is_time(count):
                return False
            started = time.monotonic()
            outcome = learn(self._store, self._registry, may_publish=lease.is_held)
            log.info(
                "%s (%.0f s, %d records): %s",
                outcome.version or "no version",
                time.monotonic() - started,
                count,
                outcome.reason,
            )
            if lease.is_held():
                self._client.set(TRAINED, count)
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

    def _is_time(self, count: int) -> bool:
        new = count - int(self._client.get(TRAINED) or 0)
        waited = time.monotonic() - self._began_s
        return new >= self._records or (new > 0 and waited >= self._seconds)


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
        See `begin`.
    """
    url, store = begin(settings, _NICENESS)
    torch.set_num_threads(settings.trainer_threads)
    registry = Registry(settings.registry_url)
    trainer = Trainer(url, store, registry, settings.train_records, settings.train_s)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    try:
        if once:
            trainer.look()
        else:
            trainer.run(threading.Event())
    finally:
        trainer.close()
    return 0
