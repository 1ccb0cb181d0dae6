"""Jobs of a queue, and the slices in which they are done."""

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
        Name of the client that sent the request.
    lane : hashable
        Key of the batches that the job may join. A batch never mixes two lanes.
    size : int
        Units of work, at least one.
    opening : int
        Units that must be done before the others, all in the first slice; 0 if there are none.
    nbytes : int
        Bytes that the job occupies until it is over.
    deadline : float or None
        Time after which the client no longer waits.
    work : object
        The work itself, which the queue passes on unchanged.
    taken, done : int
        Units handed out in slices, and units completed.
    is_over : bool
        Whether the job has ended: done, withdrawn or past its deadline.
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
        """Units not handed out yet."""
        return self.size - self.taken

    @property
    def next_slice(self) -> int:
        """Units that can be handed out now, not counting the opening; 0 while the opening is in progress."""
        if self.taken == 0:
            return self.size - self.opening
        return self.left if self.done >= self.opening else 0


@dataclass(frozen=True, slots=True)
class Slice(Generic[Work]):
    """Part of a job: `count` units, beginning with unit `first`."""

    job: Job[Work]
    first: int
    count: int
