"""The lock of who writes in a record store. Its holder may be stopped and never go on, so a wait for it has an end and is told."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tlp_service.file_lock import lock_within
from tlp_service.records.store_path import LOCK

log = logging.getLogger(__name__)

#: Seconds after which a wait is logged.
_TELL_S = 10.0


@contextmanager
def alone_in(folder: Path, max_wait_s: float) -> Iterator[None]:
    """Wait until no other process writes in a folder, and keep others from it.

    Raises
    ------
    OSError
        If another one has not ended after so long, or the lock cannot be had at all.
    """
    path = folder / LOCK

    def tell() -> None:
        log.warning("waiting for another process that writes in %s", folder)

    with path.open("a") as lock:
        if not lock_within(lock, max_wait_s, tell, _TELL_S):
            reason = f"another process has kept the record store locked for {max_wait_s:.0f} s"
            raise OSError(errno.EAGAIN, reason, str(path))
        yield
