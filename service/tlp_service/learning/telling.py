"""Takes what was recorded into the figures of prediction error, and reports them through Redis, in a thread of its own.

Whatever happens here, measurements go on being stored: a candidate that takes a minute to score, a registry that does not answer, a fault.
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

from tlp_service.learning.quality import Quality
from tlp_service.measurements.recorder import Moved
from tlp_service.measurements.stream import QUALITY

log = logging.getLogger(__name__)

#: Seconds for which figures of prediction error stand after the last recorder has ended.
_QUALITY_S = 3600
#: Seconds between two reports.
_TELL_S = 5.0
#: Measurements that wait to be taken into the figures; the oldest batch is dropped for what comes then.
_MAX_WAITING = 20_000
#: Seconds that the thread has to end.
_END_S = 5.0


class Teller:
    """A thread that takes batches into the figures, and reports them from time to time.

    What goes wrong in it is a warning.

    Parameters
    ----------
    client : Redis
        Where figures are reported; closed with this.
    quality : Quality
        The figures; from here on only the thread uses them.
    clock : callable
        Returns seconds, as `time.monotonic` does.
    """

    def __init__(self, client: Any, quality: Quality, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._quality = quality
        self._clock = clock
        self._told_s = float("-inf")
        self._is_new = False
        self._changed = threading.Condition()
        # Guarded by it: what waits, how many measurements that are, how many were dropped, and whether it is the end.
        self._waiting: deque[Moved] = deque()
        self._size = self._dropped = 0
        self._is_ending = False
        # Not waited for at the end of the process: what it hangs in may never return.
        self._thread = threading.Thread(target=self._run, name="tlp-figures", daemon=True)
        self._thread.start()

    def take(self, moved: Moved) -> None:
        """Hand a batch over, which may be empty; return at once."""
        if not moved.records:
            return
        with self._changed:
            self._waiting.append(moved)
            self._size += len(moved.records)
            while self._size > _MAX_WAITING and len(self._waiting) > 1:
                count = len(self._waiting.popleft().records)
                self._size -= count
                self._dropped += count
            self._changed.notify()

    def close(self, timeout_s: float | None = None) -> bool:
        """End the thread and close the connection; return whether the thread ended in time."""
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
            moved, dropped, is_ending = self._next()
            if is_ending:
                return
            if dropped:
                log.warning("%d measurements are in no figure of prediction error: too many came", dropped)
            try:
                self._include(moved)
            except (RedisError, OSError) as error:
                log.warning("prediction error can't be told: %s", error)
            except Exception:
                log.exception("prediction error can't be told")

    def _next(self) -> tuple[Moved | None, int, bool]:
        """Wait for a batch, or until figures are to be reported; return it, how many were dropped, and whether it is the end."""
        with self._changed:
            left_s = max(0.0, self._told_s + _TELL_S - self._clock()) if self._is_new else None
            self._changed.wait_for(lambda: self._waiting or self._is_ending, left_s)
            moved = self._waiting.popleft() if self._waiting else None
            self._size -= len(moved.records) if moved is not None else 0
            dropped, self._dropped = self._dropped, 0
            return moved, dropped, self._is_ending

    def _include(self, moved: Moved | None) -> None:
        """Take a batch into the figures, and report them if it is time."""
        if moved is not None:
            self._quality.take(moved.records, moved.times_s)
            self._is_new = True
        now_s = self._clock()
        if not self._is_new or now_s - self._told_s < _TELL_S:
            return
        # Noted first, so that what fails is tried again after as long as what does not.
        self._told_s = now_s
        document = self._quality.document(time.time())
        self._client.set(QUALITY, msgspec.json.encode(document), ex=_QUALITY_S)
        self._is_new = False
