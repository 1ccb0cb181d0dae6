"""Ending a process whose threads may hang inside a library."""

from __future__ import annotations

import logging
import os
import sys
import threading

log = logging.getLogger(__name__)


def leave_stuck_threads(*prefixes: str) -> None:
    """End the process now if a thread of these names still runs; else return.

    Python cannot stop a thread that hangs in native code, and would crash when it tears down the interpreter around it.

    Parameters
    ----------
    prefixes : str
        Beginnings of the names of threads that should have ended by now.
    """
    stuck = [thread.name for thread in threading.enumerate() if thread.name.startswith(prefixes)]
    if not stuck:
        return
    log.error("stopped, although these threads still run: %s", ", ".join(stuck))
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)
