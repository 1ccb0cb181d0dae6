"""Rejects costs that cannot be run times, so that a fabricated cost does not become the best of its task.

Labels and regrets are relative to the best cost of a task. If a broken or dishonest worker reports 1 ns for a
program of 1 ms,
all labels of the task become a millionth, and the regret of each search round becomes a million.
"""

from __future__ import annotations

import json
import math

import numpy as np
import numpy.typing as npt

from tlp_client.bounded import bounded_function

#: Shortest possible run time in seconds; launching a program takes longer. The shortest of 1.6 million public
#: records is 540 ns.
MIN_PLAUSIBLE_S = 1e-8
#: Elements per second that no device can write: about 20 times the memory bandwidth of the fastest GPU, at one
#: byte per element.
_MAX_ELEMENTS_PER_S = 1e14
#: Upper bound on the elements of an output, since Python's integers have none.
_MAX_ELEMENTS = 10**18
#: A cost is implausible if it is more than this factor below the lower quartile of its task. In 3,388 tasks of
#: the public logs,
#: and in windows of 8 to 64 records of each, the best cost is at most a factor of 50 below the quartile.
_MAX_RATIO = 100.0
#: Maximum bytes of the cache of `min_cost_s`, including its workload keys of up to 64 KiB each.
_REMEMBERED_BYTES = 4 << 20


def is_plausible(workload: str, costs: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return which costs of a task can be run times, shape (candidates,).

    A cost can be one if it is physically possible (see `min_cost_s`) and at most a factor of 100 below the
    lower quartile of its task. With fewer than five costs the quartile is the smallest cost, so only
    impossible costs are rejected.

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
    """Return a lower bound on the run time of a task in seconds.

    If the workload key contains shapes (``["hash", [shape], …]``, ``ComputeDAG.workload_key`` of TVM 0.19),
    the last one is the shape of the output, and each of its elements has to be written.
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
