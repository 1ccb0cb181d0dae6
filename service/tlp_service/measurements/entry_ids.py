"""Ids of the entries of a stream, ``milliseconds-number``: their order, and the ids beside one."""

from __future__ import annotations

#: Last number of the entries of a millisecond.
_LAST_NUMBER = 2**64 - 1


def order(entry: str) -> tuple[int, int]:
    """Return what ids are ordered by."""
    time_ms, number = entry.split("-")
    return int(time_ms), int(number)


def after(entry: str) -> str:
    """Return the first id that comes after another."""
    time_ms, number = order(entry)
    return f"{time_ms}-{number + 1}" if number < _LAST_NUMBER else f"{time_ms + 1}-0"


def before(entry: str) -> str:
    """Return the last id that comes before another."""
    time_ms, number = order(entry)
    if number:
        return f"{time_ms}-{number - 1}"
    return f"{time_ms - 1}-{_LAST_NUMBER}" if time_ms else "0-0"
