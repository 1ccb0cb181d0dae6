"""A health check that tries a write to find out whether measurements can be written."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from redis.exceptions import RedisError

from tlp_service.measurements.faults import cause_of

log = logging.getLogger(__name__)

#: Seconds for which a result counts as current, so that any number of checks cause at most one write per second.
_FRESH_S = 1.0
#: Seconds after which a write without an answer counts as failed.
LIMIT_S = 2.0


class WriteProbe:
    """Tries a write on request, at most once per second, and remembers the result. For one event loop.

    Parameters
    ----------
    write : callable
        Tries a write; raises what writing a measurement would raise.
    clock : callable
        Returns seconds, as `time.monotonic` does.
    """

    def __init__(
        self, write: Callable[[], Awaitable[object]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._reason: str | None = "it has not answered yet"
        self._known_s: float | None = None
        self._trying: asyncio.Task[None] | None = None

    async def reason(self, wait_s: float | None = None) -> str | None:
        """Return why measurements can't be written, or None if they can.

        Parameters
        ----------
        wait_s : float or None
            Seconds to wait for a write in progress; then the previous result is returned. None waits until it ends.
        """
        if self._known_s is None or self._clock() - self._known_s >= _FRESH_S:
            if self._trying is None:
                self._trying = asyncio.create_task(self._try())
            await asyncio.wait({self._trying}, timeout=wait_s)
        return self._reason

    def note(self, error: BaseException | None) -> None:
        """Note the result of a write: its error, or None if it succeeded."""
        reason = None if error is None else cause_of(error)
        if reason != self._reason:
            if reason is not None:
                log.warning(
                    "measurements cannot be kept: the server of the stream fails: %s (%s)", reason, error
                )
            elif self._known_s is not None:
                log.info("measurements can be kept again")
        self._reason, self._known_s = reason, self._clock()

    def close(self) -> None:
        """Cancel the write in progress."""
        if self._trying is not None:
            self._trying.cancel()

    async def _try(self) -> None:
        try:
            await asyncio.wait_for(self._write(), LIMIT_S)
        except (RedisError, OSError, asyncio.TimeoutError) as error:
            self.note(error)
        except Exception as error:
            log.exception("the write probe failed unexpectedly")
            self.note(error)
        else:
            self.note(None)
        finally:
            self._trying = None
