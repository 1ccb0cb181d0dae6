"""Ordering of stream entry ids (``milliseconds-number``), and the ids next to a given one."""

from __future__ import annotations

#: Largest sequence number within a millisecond.
_LAST_NUMBER = 2**64 - 1


def order(entry: str) -> tuple[int, int]:
    """Return the sort key of an id."""
    time_ms, number = entry.split("-")
    return int(time_ms), int(number)


def after(entry: str) -> str:
    """Return the smallest id that is greater than another."""
    time_ms, number = order(entry)
    return f"{time_ms}-{number + 1}" if number < _LAST_NUMBER else f"{time_ms + 1}-0"


def before(entry: str) -> str:
    """Return the largest id that is less than another."""
    time_ms, number = order(entry)
    if number:
        return f"{time_ms}-{number - 1}"
    return f"{time_ms - 1}-{_LAST_NUMBER}" if time_ms else "0-0"
