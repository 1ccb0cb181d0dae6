"""What a child of fork must not share with its parent."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable


def call_in_child(method: Callable[[], None]) -> None:
    """Call a bound method in each child of fork, as long as its object lives.

    Parameters
    ----------
    method : bound method
        Makes the object's sockets, locks or threads anew.
    """
    reference = weakref.WeakMethod(method)

    def renew() -> None:
        bound = reference()
        if bound is not None:
            bound()

    os.register_at_fork(after_in_child=renew)
