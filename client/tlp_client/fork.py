"""Reset objects in a forked child that must not share state with its parent."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable


def call_in_child(method: Callable[[], None]) -> None:
    """Call a bound method in each forked child while its object is alive.

    Parameters
    ----------
    method : bound method
        Recreates the object's sockets, locks or threads.
    """
    reference = weakref.WeakMethod(method)

    def renew() -> None:
        bound = reference()
        if bound is not None:
            bound()

    os.register_at_fork(after_in_child=renew)
