"""The latest of what came, each item once: what a consumer keeps of a stream that may deliver again. Pure."""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Iterator
from operator import itemgetter
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """The latest items by their time, at most so many, each id once.

    An id that is held is not taken again. Nor is an item that is no later than everything in a full window: it has been displaced before, or would
    be by what is there. So a stream that is delivered again, from any place and as often as one likes, changes nothing.

    Parameters
    ----------
    capacity : int
        Largest number of items.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # By time; nearly everything comes in order, and so is added at the end.
        self._items: list[tuple[float, int | None, T]] = []
        self._ids: set[int | None] = set()

    def lacks(self, id_: int | None, time_s: float) -> bool:
        """Return whether `add` would take an item."""
        if id_ in self._ids:
            return False
        return len(self._items) < self._capacity or time_s > self._items[0][0]

    def add(self, id_: int | None, time_s: float, item: T) -> bool:
        """Take in an item, unless it was there before, and return whether it was taken; the oldest goes.

        Parameters
        ----------
        id_ : int or None
            What tells it from others; None for an item that comes once.
        time_s : float
            When it came into the stream.
        """
        if not self.lacks(id_, time_s):
            return False
        if len(self._items) >= self._capacity:
            _, oldest, _ = self._items.pop(0)
            self._ids.discard(oldest)
        insort_right(self._items, (time_s, id_, item), key=itemgetter(0))
        if id_ is not None:
            self._ids.add(id_)
        return True

    def entries(self) -> Iterator[tuple[int | None, float, T]]:
        """Yield id, time and item of what is held, the oldest first."""
        for time_s, id_, item in self._items:
            yield id_, time_s, item

    def __iter__(self) -> Iterator[T]:
        return (item for _, _, item in self._items)

    def __len__(self) -> int:
        return len(self._items)
