"""Computations that can be suspended between two steps, so that other requests get their turn."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

#: A computation that yields the cost of each step before doing it, and returns the result. The cost is in
#: units of work: one unit is the time to read a byte of JSON, about 20 ns.
Steps: TypeAlias = Generator[int, None, T]


def finished(steps: Steps[T]) -> T:
    """Run a computation without interruption, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def advance(steps: Steps[T], budget: int, cost: int = 0) -> tuple[int, T | None]:
    """Do steps of a computation while they fit into a budget, but at least one.

    Parameters
    ----------
    budget : int
        Units of work.
    cost : int
        Units of the first step, which the computation yielded before it was suspended.

    Returns
    -------
    cost : int
        Units of the next step; 0 if the computation has ended.
    result : object
        Its result, if it has ended.
    """
    spent = cost
    while True:
        try:
            cost = max(1, next(steps))
        except StopIteration as end:
            return 0, end.value
        spent += cost
        if spent > budget:
            return cost, None
