"""The lock of who writes in a record store. Its holder may be stopped and never go on, so a wait for it has an end and is told."""

from __future__ import annotations

import errno
import fcntl
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tlp_service.records.store_path import LOCK

log = logging.getLogger(__name__)

#: Seconds between two tries, and those after which a wait is logged.
_PAUSE_S, _TELL_S = 0.02, 10.0


@contextmanager
def alone_in(folder: Path, max_wait_s: float) -> Iterator[None]:
    """Wait until no other process writes in a folder, and keep others from it.

    Raises
    ------
    OSError
        If another one has not ended after so long, or the lock cannot be had at all.
    """
    path = folder / LOCK
    with path.open("a") as lock:
        began_s = time.monotonic()
        is_told = False
        while not _is_locked(lock):
            waited_s = time.monotonic() - began_s
            if waited_s >= max_wait_s:
                reason = f"another process has kept the record store locked for {max_wait_s:.0f} s"
                raise OSError(errno.EAGAIN, reason, str(path))
            if waited_s >= _TELL_S and not is_told:
                log.warning("waiting for another process that writes in %s", folder)
                is_told = True
            time.sleep(_PAUSE_S)
        yield


def _is_locked(lock: IO[str]) -> bool:
    """Return whether a lock could be had."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
