"""Computes prediction error in a thread of its own, and reports it through Redis.

This thread never delays the recorder, even if scoring takes a minute, the registry hangs or an exception is raised.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from redis.exceptions import RedisError

from tlp_service.measurements.recorder import BatchResult
from tlp_service.measurements.stream import QUALITY
from tlp_service.quality.windows import Quality

log = logging.getLogger(__name__)

#: Seconds after which a report expires in Redis if no recorder renews it.
_QUALITY_S = 3600
#: Seconds between two reports.
_REPORT_S = 5.0
#: Maximum number of queued measurements; beyond it, the oldest batches are dropped.
_MAX_WAITING = 20_000
#: Seconds that `QualityReporter.close` waits for the thread.
_END_S = 5.0


class QualityReporter:
    """A thread that includes batches in the figures, and reports the figures every few seconds.

    Errors are logged, and the thread continues.

    Parameters
    ----------
    client : Redis
        Client of the Redis server that stores the reports; closed by `close`.
    quality : Quality
        The figures to update. Only the thread may use them from now on.
    clock : callable
        Returns seconds, as `time.monotonic` does.
    """

    def __init__(self, client: Any, quality: Quality, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._quality = quality
        self._clock = clock
        self._reported_s = float("-inf")
        self._is_new = False
        self._changed = threading.Condition()
        # Guarded by `_changed`: queued batches, the number of their measurements, the number of dropped measurements,
        # and whether `close` was called.
        self._waiting: deque[BatchResult] = deque()
        self._size = self._dropped = 0
        self._is_ending = False
        # A daemon thread, so that it does not keep the process alive if it hangs.
        self._thread = threading.Thread(target=self._run, name="tlp-figures", daemon=True)
        self._thread.start()

    def take(self, result: BatchResult) -> None:
        """Queue a batch, which may be empty, and return at once."""
        if not result.records:
            return
        with self._changed:
            self._waiting.append(result)
            self._size += len(result.records)
            while self._size > _MAX_WAITING and len(self._waiting) > 1:
                count = len(self._waiting.popleft().records)
                self._size -= count
                self._dropped += count
            self._changed.notify()

    def close(self, timeout_s: float | None = None) -> bool:
        """End the thread and close the client; return whether the thread ended in time."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(_END_S if timeout_s is None else timeout_s)
        if self._thread.is_alive():
            return False
        self._client.close()
        return True

    def _run(self) -> None:
        while True:
            result, dropped, is_ending = self._next()
            if is_ending:
                return
            if dropped:
                log.warning(
                    "prediction error leaves out %d measurements: more came than can be scored", dropped
                )
            try:
                self._include(result)
            except (RedisError, OSError) as error:
                log.warning("prediction error can't be reported: %s", error)
            except Exception:
                log.exception("prediction error can't be reported")

    def _next(self) -> tuple[BatchResult | None, int, bool]:
        """Wait for a batch or the next report.

        Returns the batch, the number of dropped measurements, and whether to end.
        """
        with self._changed:
            left_s = max(0.0, self._reported_s + _REPORT_S - self._clock()) if self._is_new else None
            self._changed.wait_for(lambda: self._waiting or self._is_ending, left_s)
            result = self._waiting.popleft() if self._waiting else None
            self._size -= len(result.records) if result is not None else 0
            dropped, self._dropped = self._dropped, 0
            return result, dropped, self._is_ending

    def _include(self, result: BatchResult | None) -> None:
        """Include a batch in the figures, and report them if a report is due."""
        if result is not None:
            self._quality.take(result.records, result.times_s)
            self._is_new = True
        now_s = self._clock()
        if not self._is_new or now_s - self._reported_s < _REPORT_S:
            return
        # Set before reporting, so that the next report waits its full interval even if this one fails.
        self._reported_s = now_s
        document = self._quality.document(time.time())
        self._client.set(QUALITY, msgspec.json.encode(document), ex=_QUALITY_S)
        self._is_new = False
