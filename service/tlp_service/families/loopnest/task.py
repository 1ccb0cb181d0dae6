"""The features of a task in `loopnest`: numbers of its workload key, a class of its name, the platform."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import numpy.typing as npt

#: Maximum number of platforms that one network distinguishes.
PLATFORMS = 64
_KEY_NUMBERS = 24
#: Knots of the piecewise linear basis of a logarithm.
_CORNERS = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 21], dtype=np.float64)
_A_NUMBER = len(_CORNERS) + 6
#: Number of hash classes for the names of operators.
_NAMES = 64
#: Number of features of a task.
TASK_WIDTH = _KEY_NUMBERS * (1 + _A_NUMBER) + 3 + _NAMES + PLATFORMS
#: Divisor of all logarithms, which brings them near 1.
_SCALE = 8.0


def task_row(workload_key: str, platform: int | None) -> npt.NDArray[np.float32]:
    """Return the row of a task, shape (`TASK_WIDTH`,).

    Parameters
    ----------
    workload_key : str
        Workload key as TVM writes it: the name of a function or the hash of a graph, with extents and
        attributes as integers.
    platform : int or None
        Number of the platform among those of the version; None if the version does not know it.
    """
    row = np.zeros(TASK_WIDTH, dtype=np.float32)
    name, numbers = _read_key(workload_key)
    for n, number in enumerate(numbers[:_KEY_NUMBERS]):
        begin = n * (1 + _A_NUMBER)
        row[begin] = 1
        row[begin + 1 : begin + 1 + _A_NUMBER] = _describe(number)
    logs = [math.log2(1 + abs(number)) for number in numbers] or [0.0]
    begin = _KEY_NUMBERS * (1 + _A_NUMBER)
    row[begin : begin + 3] = [len(numbers) / 16, sum(logs) / 64, max(logs) / 16]
    digest = hashlib.blake2b(name.encode(errors="replace"), digest_size=8).digest()
    row[begin + 3 + int.from_bytes(digest, "big") % _NAMES] = 1
    if platform is not None:
        row[platform_column(platform)] = 1
    return row


def platform_column(platform: int) -> int:
    """Return the column of a task's row that is 1 for a platform."""
    return TASK_WIDTH - PLATFORMS + platform


def _read_key(workload_key: str) -> tuple[str, list[int]]:
    """Return the name and the integers of a workload key; the key itself and none if it is not JSON."""
    try:
        key = json.loads(workload_key)
    except (ValueError, RecursionError):
        return workload_key, []
    stack, numbers = [key], []
    name = key[0] if isinstance(key, list) and key and isinstance(key[0], str) else ""
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack += reversed(value)
        elif type(value) is int:
            numbers.append(value)
    return name, numbers


def _describe(number: int) -> list[float]:
    """Return a number as a piecewise linear basis of its logarithm, and as multiplicities of small primes."""
    basis = [0.0] * len(_CORNERS)
    if number <= 0:
        return [*basis, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    log = min(math.log2(number), float(_CORNERS[-1]))
    right = min(int(np.searchsorted(_CORNERS, log, side="right")), len(_CORNERS) - 1)
    left = right - 1
    basis[right] = (log - _CORNERS[left]) / (_CORNERS[right] - _CORNERS[left])
    basis[left] = 1 - basis[right]
    twos, threes = _multiplicity(number, 2, 6), _multiplicity(number, 3, 3)
    return [
        *basis,
        math.log2(number) / _SCALE,
        twos / 4,
        threes / 2,
        float(number % 5 == 0),
        float(number % 7 == 0),
        0.0,
    ]


def _multiplicity(number: int, prime: int, limit: int) -> int:
    found = 0
    while found < limit and number % prime == 0:
        number //= prime
        found += 1
    return found
