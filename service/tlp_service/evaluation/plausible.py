"""Which measured costs count: one fabricated cost must not become the best of its task, against which all others are held.

A worker that is broken, or lies, sends a cost of 1 ns for a program of 1 ms. Were it taken for the best cost of the task, every label of that
task would be a millionth, and every choice of a search a regret of a million.
"""

from __future__ import annotations

import json
import math

import numpy as np
import numpy.typing as npt

from tlp_client.bounded import bounded_function

#: Seconds. No program is launched and returns in less; the shortest of 1.6 million public records takes 540 ns.
MIN_PLAUSIBLE_S = 1e-8
#: Elements per second that no device writes: about 20 times the bandwidth of the fastest memory of today's GPUs, at one byte per element.
_MAX_ELEMENTS_PER_S = 1e14
#: Elements of an output that are counted; more are no tensor, and Python's integers have no end.
_MAX_ELEMENTS = 10**18
#: A cost is implausible if the lower quartile of its task is more than this factor above it. In 3,388 tasks of the public logs, whole or in
#: windows of 8 to 64 records of a search, the best cost is at most 50 times below the quartile.
_MAX_RATIO = 100.0
#: Bytes of the shortest times that are remembered, with their workload keys, each of which may have 64 KiB.
_REMEMBERED_BYTES = 4 << 20


def is_plausible(workload: str, costs: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return which costs of a task can be run times, shape (candidates,).

    A cost counts if it is physically possible (see `min_cost_s`) and not a hundred times below the lower quartile of its task. With fewer than
    five costs the quartile is the smallest cost itself, so only what is impossible is left out.

    Parameters
    ----------
    workload : str
        Workload key of the task.
    costs : ndarray of float64, shape (candidates,)
        Finite costs in seconds.
    """
    if not len(costs):
        return np.ones(0, dtype=np.bool_)
    possible = costs >= min_cost_s(workload)
    if not possible.any():
        return possible
    quartile = np.quantile(costs[possible], 0.25, method="lower")
    return np.asarray(possible & (costs * _MAX_RATIO >= quartile), dtype=np.bool_)


@bounded_function(_REMEMBERED_BYTES)
def min_cost_s(workload: str) -> float:
    """Return the least time in seconds that a task can take.

    Where the workload key states shapes (``["hash", [shape], …]``, ``ComputeDAG.workload_key`` of TVM 0.19), the last is that of the output, each
    element of which has to be written.
    """
    try:
        key = json.loads(workload)
    except (ValueError, RecursionError):
        return MIN_PLAUSIBLE_S
    if not isinstance(key, list) or len(key) < 2 or not all(map(_is_shape, key[1:])):
        return MIN_PLAUSIBLE_S
    return max(MIN_PLAUSIBLE_S, min(math.prod(key[-1]), _MAX_ELEMENTS) / _MAX_ELEMENTS_PER_S)


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(n) is int and n > 0 for n in value)
