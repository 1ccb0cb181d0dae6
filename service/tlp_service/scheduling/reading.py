"""Reading of request bodies in slices, so that other bodies get their turn."""

from __future__ import annotations

from typing import Any, TypeVar

from tlp_service.scheduling.executor import Work
from tlp_service.scheduling.steps import Steps, advance

T = TypeVar("T")

#: Units of work (see `tlp_service.scheduling.steps`) per slice in a thread, and of a small body on the event
#: loop: about 5 ms.
SLICE = 1 << 18
#: Units of work per byte of an ordinary body. The first slice has room for all of them, so ordinary bodies
#: are read without interruption, and the queue can estimate how long the waiting ones will take.
UNITS_PER_BYTE = 8


class Reading(Work[T]):
    """Reading a body, or computing from what was read, as work for an `Executor` with one thread.

    Parameters
    ----------
    steps : Steps
        Compute the result; other requests get their turn between two slices of them.
    size : int
        Units of work that are known before the start (see `tlp_service.scheduling.steps`), such as the bytes
        of the body.
    expected : int, optional
        Units that the first slice may take.
    """

    def __init__(self, steps: Steps[T], size: int, expected: int = 0) -> None:
        super().__init__()
        self._expected = expected
        self._steps = steps
        self._next = size  # cost of the next step, in units
        self._said: Any = None

    @property
    def size(self) -> int:
        """Units of work of the next slice."""
        return max(self._next, self._expected)

    @property
    def nbytes(self) -> int:
        """0, since the memory of bodies is counted from their first byte on."""
        return 0

    def run(self, first: int, count: int) -> None:
        """Do the next slice."""
        budget, self._expected = max(SLICE, self._expected), 0
        self.advance(budget)

    def advance(self, budget: int) -> bool:
        """Do at most `budget` units of work, but at least one step; return whether all work is done."""
        self._next, self._said = advance(self._steps, budget, self._next)
        self.more = self._next
        return not self._next

    def result(self) -> T:
        """Return the result, once."""
        said: T = self._said
        self._said = None
        return said
