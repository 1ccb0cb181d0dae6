"""Computations that can be put aside between two of their steps, so that others get their turn, and given up there."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

#: A computation that yields, before each of its steps, how much work the step is, and returns what all came to. A unit is what reading a byte of
#: JSON takes, some 20 ns.
Steps: TypeAlias = Generator[int, None, T]


def finished(steps: Steps[T]) -> T:
    """Return what a computation comes to, made in one go."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def advance(steps: Steps[T], budget: int, cost: int = 0) -> tuple[int, T | None]:
    """Make steps of a computation as long as they fit into a budget, but at least the first.

    Parameters
    ----------
    budget : int
        Units.
    cost : int
        Units of the first step, which the computation told when it was put aside.

    Returns
    -------
    cost : int
        Units of the step that comes next; 0 if the computation has ended.
    result : object
        What it came to, if it has ended.
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
