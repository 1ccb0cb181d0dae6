"""A cache that bounds itself by the memory that it takes, whoever fills it."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from sys import getsizeof
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

#: Bytes of a dict for each of its entries, in the worst case, which is just after it has grown.
_ENTRY_BYTES = 120


class BoundedCache(dict[Key, Value]):
    """A dict that forgets everything when its entries would take too much memory.

    Only `add` may fill it. Looking up is as fast as in any dict. Threads may share it, since they can only lose entries.

    Parameters
    ----------
    max_bytes : int
        Memory of all entries; an entry that takes more by itself is never kept.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self.max_bytes = max_bytes
        self.nbytes = 0

    def add(self, key: Key, value: Value, nbytes: int) -> Value:
        """Keep a value that, with its key, takes `nbytes`; return it."""
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
        """Forget everything."""
        super().clear()
        self.nbytes = 0


class BoundedFunction(Generic[Value]):
    """A function of one text that remembers its results in a `BoundedCache`, see `bounded_function`."""

    def __init__(self, function: Callable[[str], Value], max_bytes: int) -> None:
        self.cache: BoundedCache[str, Value] = BoundedCache(max_bytes)
        self._function = function
        update_wrapper(self, function)

    def __call__(self, text: str) -> Value:
        """Return the function's value."""
        try:
            return self.cache[text]
        except KeyError:
            value = self._function(text)
            return self.cache.add(text, value, getsizeof(text) + memory_of(value))


def bounded_function(max_bytes: int) -> Callable[[Callable[[str], Value]], BoundedFunction[Value]]:
    """Return a decorator for functions of one text whose results are remembered up to `max_bytes` of memory."""
    return lambda function: BoundedFunction(function, max_bytes)


def memory_of(value: object) -> int:
    """Return the bytes of a value and, where it is a tuple, of all that it holds."""
    if isinstance(value, tuple):
        return getsizeof(value) + sum(map(memory_of, value))
    return getsizeof(value)
