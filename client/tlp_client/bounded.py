"""A cache with bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from sys import getsizeof
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

#: Overhead of a dict per entry in bytes. The worst case is right after the dict has grown.
_ENTRY_BYTES = 120


class BoundedCache(dict[Key, Value]):
    """A dict that drops all entries when they exceed its memory bound.

    Add entries with `add` only. A lookup is as fast as in any dict. Threads may share it; a race can only
    lose an entry.

    Parameters
    ----------
    max_bytes : int
        Maximum bytes of all entries. A single larger entry is not cached.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self.max_bytes = max_bytes
        self.nbytes = 0

    def add(self, key: Key, value: Value, nbytes: int) -> Value:
        """Add a value and return it; `nbytes` is the size of key and value together."""
        nbytes += _ENTRY_BYTES
        if nbytes > self.max_bytes:
            return value
        self.nbytes += nbytes
        if self.nbytes > self.max_bytes:
            self.clear()
            self.nbytes = nbytes
        self[key] = value
        return value

    def clear(self) -> None:
        """Drop all entries."""
        super().clear()
        self.nbytes = 0


class BoundedFunction(Generic[Value]):
    """A function of one string that caches its results in a `BoundedCache`, see `bounded_function`."""

    def __init__(self, function: Callable[[str], Value], max_bytes: int) -> None:
        self.cache: BoundedCache[str, Value] = BoundedCache(max_bytes)
        self._function = function
        update_wrapper(self, function)

    def __call__(self, text: str) -> Value:
        """Return the value of the function, from the cache if it is there."""
        try:
            return self.cache[text]
        except KeyError:
            value = self._function(text)
            return self.cache.add(text, value, getsizeof(text) + memory_of(value))


def bounded_function(max_bytes: int) -> Callable[[Callable[[str], Value]], BoundedFunction[Value]]:
    """Return a decorator that caches the results of a function of one string, up to `max_bytes` of memory."""
    return lambda function: BoundedFunction(function, max_bytes)


def memory_of(value: object) -> int:
    """Return the bytes of a value; those of a tuple include all its elements."""
    if isinstance(value, tuple):
        return getsizeof(value) + sum(map(memory_of, value))
    return getsizeof(value)
