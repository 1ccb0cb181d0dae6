"""A file lock between processes, with a timeout, since a suspended holder may never release it."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable
from typing import IO

#: Seconds between two tries.
_PAUSE_S = 0.02


def lock_within(
    file: IO[str] | int, max_wait_s: float, tell: Callable[[], None] | None = None, tell_after_s: float = 0.0
) -> bool:
    """Lock a file until it is closed; return whether that succeeded before the timeout.

    Parameters
    ----------
    file : file or int
        The open file, or its descriptor.
    max_wait_s : float
        Seconds after which to give up.
    tell : callable, optional
        Is called once, when another process has kept the lock for `tell_after_s`.
    tell_after_s : float, optional
        Seconds.

    Raises
    ------
    OSError
        If the file system has no locks.
    """
    began_s = time.monotonic()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            waited_s = time.monotonic() - began_s
        if waited_s >= max_wait_s:
            return False
        if tell is not None and waited_s >= tell_after_s:
            tell()
            tell = None
        time.sleep(_PAUSE_S)
