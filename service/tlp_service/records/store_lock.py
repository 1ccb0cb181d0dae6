"""The writer lock of a record store.

Waiting for it is logged and has a timeout, since a suspended holder may never release it.
"""

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
    """Hold the writer lock of a folder in the context.

    Raises
    ------
    OSError
        If another process still holds the lock at the timeout, or the file cannot be locked.
    """
    path = folder / LOCK

    def tell() -> None:
        log.warning("waiting for another process that writes in %s", folder)

    with path.open("a") as lock:
        if not lock_within(lock, max_wait_s, tell, _TELL_S):
            reason = f"another process has kept the record store locked for {max_wait_s:.0f} s"
            raise OSError(errno.EAGAIN, reason, str(path))
        yield
