"""A window of the latest items of a stream that may deliver an item twice. Pure."""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Iterator
from operator import itemgetter
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """The latest items by time, up to a capacity, each id once.

    An item is rejected if its id is in the window, or if the window is full of later items.
    So redelivery of the stream, from any position and any number of times, changes nothing.

    Parameters
    ----------
    capacity : int
        Maximum number of items.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # Sorted by time. Items mostly arrive in order, so most insertions are at the end.
        self._items: list[tuple[float, int | None, T]] = []
        self._ids: set[int | None] = set()

    def lacks(self, id_: int | None, time_s: float) -> bool:
        """Return whether `add` would accept an item."""
        if id_ in self._ids:
            return False
        return len(self._items) < self._capacity or time_s > self._items[0][0]

    def add(self, id_: int | None, time_s: float, item: T) -> bool:
        """Add an item unless it is rejected, and return whether it was added; a full window drops its oldest item.

        Parameters
        ----------
        id_ : int or None
            Identifies the item; None if it is delivered only once.
        time_s : float
            When it was added to the stream.
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
        """Yield id, time and item, the oldest first."""
        for time_s, id_, item in self._items:
            yield id_, time_s, item

    def __iter__(self) -> Iterator[T]:
        return (item for _, _, item in self._items)

    def __len__(self) -> int:
        return len(self._items)
