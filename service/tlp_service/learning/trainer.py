"""The trainer: checks which platforms are due, and trains them one at a time."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pyarrow as pa
from redis.exceptions import RedisError

from tlp_service.errors import ServiceFault
from tlp_service.learning.lease import Lease, leased
from tlp_service.learning.outcome import Outcome
from tlp_service.learning.standings import Standings
from tlp_service.learning.turns import Standing
from tlp_service.records.store import RecordStore
from tlp_service.redis_url import connect
from tlp_service.versions.hints import tell
from tlp_service.versions.registry import Registry

log = logging.getLogger(__name__)

#: Redis key of the lease of the active trainer.
LEASE = "{tlp}:trainer"
#: Seconds between two checks for platforms that are due.
_LOOK_S = 5.0
#: Maximum of the exponential back-off between checks after a failure, in seconds.
#: A fault that shows only at the end, such as a full disk of the registry, wastes a whole training each time.
_MAX_PAUSE_S = 300.0
#: Maximum number of platforms to try per check.
#: Refusing a platform for its records takes seconds; training on one takes a minute.
_MAX_LOOKED_AT = 16


class Trainer:
    """Trains platforms that have enough new records since their last verdict.

    Platforms are trained one by one, the one with the largest expected gain first. A check ends after one training,
    since by then another platform may gain more. A platform counts as trained only when its verdict is written,
    and not if the step was put off for a reason outside the platform.

    Parameters
    ----------
    url : str
        URL of the Redis that keeps the lease and the counts of records.
    store : RecordStore
        The record store to train on.
    registry : Registry
        The registry in which versions are published.
    records : int
        Number of new records at which a platform is trained. Each consecutive refusal doubles the number.
        If the serving version's error drifts, a quarter is enough.
    seconds : float
        Seconds since the last verdict after which a platform with any new record is trained.
    threads : int
        Number of CPU threads for training.
    """

    def __init__(
        self, url: str, store: RecordStore, registry: Registry, records: int, seconds: float, threads: int = 1
    ) -> None:
        self._url = url
        self._client: Any = connect(url, timeout_s=10, encoding_errors="replace")
        self._store = store
        self._registry = registry
        self._threads = threads
        self._standings = Standings(self._client, store, records, seconds)
        self._put_off = ""

    def look(self, max_trained: int | None = 1) -> bool:
        """Train if a platform is due and no other trainer is active; return whether a verdict was written.

        Parameters
        ----------
        max_trained : int or None
            Maximum number of trainings; None for all platforms that are due.

        Raises
        ------
        RedisError, OSError
            If Redis, store or registry cannot be reached.
        """
        if not self._standings.due():
            return False
        with leased(self._client, LEASE) as lease:
            if lease is None:  # another trainer holds it
                return False
            written, trained = 0, 0
            for seeming in self._standings.due()[: None if max_trained is None else _MAX_LOOKED_AT]:
                standing = self._standings.is_due(seeming)
                if standing is None:
                    continue
                outcome = self._step(standing, lease)
                if outcome.state == "put off" or not lease.is_held():
                    break
                if outcome.is_verdict:
                    self._standings.note(standing, outcome.is_accepted)
                    written += 1
                else:
                    self._standings.put_last(standing)
                trained += outcome.is_trained
                if trained == max_trained:
                    break
        return written > 0

    def run(self, is_stopping: threading.Event) -> None:
        """Check for platforms that are due until an event is set; retry with back-off after a failure."""
        pause_s = _LOOK_S
        while not is_stopping.wait(pause_s):
            try:
                self.look()
                pause_s = _LOOK_S
            except (RedisError, OSError, ServiceFault, pa.ArrowException) as error:
                log.warning("nothing is learned now: %s", error)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _step(self, standing: Standing, lease: Lease) -> Outcome:
        """Train a platform, and return the outcome."""
        # Imported here to keep this process small until the first training, since torch takes much memory.
        import torch

        from tlp_service.learning import learn

        torch.set_num_threads(self._threads)
        started = time.monotonic()
        self._standings.begin(standing)
        outcome = learn.learn(self._store, self._registry, [standing.platform], may_publish=lease.is_held)
        self._standings.end(standing, outcome.is_trained)
        # A step that is put off is tried again every few seconds, but logged once.
        if outcome.is_verdict or outcome.reason != self._put_off:
            log.info(
                "%s (%s: %d records; %.0f s): %s",
                outcome.version or "no version",
                standing.platform,
                standing.records,
                time.monotonic() - started,
                outcome.reason,
            )
        self._put_off = "" if outcome.is_verdict else outcome.reason
        if outcome.is_accepted:
            tell(self._url, outcome.version)
        return outcome
