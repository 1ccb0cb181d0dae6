"""What waits in a queue, and the parts in which it is done."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Work = TypeVar("Work")


@dataclass(slots=True, eq=False)
class Job(Generic[Work]):
    """A request in the queue.

    Parameters
    ----------
    client : str
        Whose it is.
    lane : hashable
        What does it; work of two lanes is never in one batch.
    size : int
        Units of work, at least one.
    opening : int
        Units that have to be done before others, all in the first slice; 0 if there are none.
    nbytes : int
        Bytes that it holds until it is over.
    deadline : float or None
        Time after which nobody waits for it.
    work : object
        What to do, not looked at here.
    taken, done : int
        Units that were handed out, and that came back.
    is_over : bool
        Whether it has ended: done, withdrawn or too late.
    """

    client: str
    lane: Hashable
    size: int
    opening: int
    nbytes: int
    deadline: float | None
    work: Work
    taken: int = 0
    done: int = 0
    is_over: bool = False

    @property
    def left(self) -> int:
        """Units that were not handed out."""
        return self.size - self.taken

    @property
    def next_slice(self) -> int:
        """Units that can be handed out now beside the opening: none while that is being done."""
        if self.taken == 0:
            return self.size - self.opening
        return self.left if self.done >= self.opening else 0


@dataclass(frozen=True, slots=True)
class Slice(Generic[Work]):
    """Work of a job that is done together: `count` units from place `first`."""

    job: Job[Work]
    first: int
    count: int
