"""Features of unrolling, tiles and memory traffic, which are not sums of logarithms.

A stage is assumed to multiply two operands into a third, as matrix products and convolutions do: weights are
indexed by its last spatial axis and its reduction, the input by its other spatial axes and its reduction, the
output by its spatial axes. Records do not state which axes index which operand. For other operators the
features are arbitrary but still functions of the loops.

- *Unrolled* are, in the manner of TVM's ``unroll_loop.cc`` (0.19), the loops from the innermost outwards
  while the product of their extents is within the unroll step; vectorized ones do not count, and one that is
  parallel or of unknown extent ends it. TVM also counts the initialization of accumulators
  and stages computed inside, which is ignored here: for 782 of 800 schedules of matrix products and
  convolutions, the result was the same.
- The *traffic* of a memory is the number of elements loaded into it per iteration. The body is the longest
  run of innermost loops whose footprint fits the memory. Each execution of the body loads its footprint once.
  An operand stays loaded, however, across the directly enclosing loops that do not index it.

Loops bound to GPU threads share memory in other ways, so a program with such loops is treated as if it had no
loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from tlp_client.primitives import Primitive
from tlp_service.families.loopnest.loop_nest import PARALLEL, SIZES, VECTORIZE, Stage

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int8]

#: Number of stages, by most loops, with features of unrolling. Tiles and traffic describe only the first of
#: them.
STAGES = 3
#: Maximum number of parts of a stage's axes that are used, from the innermost outwards.
PARTS = 32

#: Role of an axis. The code of a part combines the role, the tile level, and whether its loop is vectorized
#: or certainly not unrolled.
_LAST, _OTHER, _REDUCTION, _NO_PART = range(4)
_VECTORIZED, _ROLLED, _LEVEL = 1 << 2, 1 << 3, 1 << 4
_ROLES = (_LAST, _OTHER, _REDUCTION)
#: For weights, input and output: the two roles that index the operand, and the one that does not.
_OPERANDS = ((_LAST, _REDUCTION, _OTHER), (_OTHER, _REDUCTION, _LAST), (_LAST, _OTHER, _REDUCTION))

#: Numbers of tile levels of spatial and of reduction axes on CPUs in Ansor.
_LEVELS, _REDUCTION_LEVELS = 4, 2
#: Bodies that are compared with the unroll step, as the outermost spatial and reduction levels that they
#: include. The last reduction level means that the body includes no reduction loop.
_BODIES = ((3, 2), (3, 1), (2, 1))
#: Logarithms of the capacities of memories in elements, from registers (128) to a share of the last-level
#: cache (4 MB of floats).
_MEMORIES = (7, 10, 13, 15, 18, 20)
#: Elements of a vector register (256 bits of floats).
_LANES = 8
#: Tolerance of comparisons: logarithms of equal products differ by less than this.
_ROUNDING = 1e-4
#: Maximum logarithm of a vector length. Longer vectors count as this long.
_MAX_VECTOR = 20

_TILES = 3 * _LEVELS + _REDUCTION_LEVELS + len(_BODIES) + 1
_UNROLLED = 15
_TRAFFIC = len(_OPERANDS) + 2
#: Number of features of a candidate.
WIDTH = _TILES + STAGES * _UNROLLED + len(_MEMORIES) * _TRAFFIC


def parts_of(
    stages: Sequence[Stage | None], primitives: Sequence[Primitive]
) -> tuple[npt.NDArray[np.int32], Codes]:
    """Return the sizes of the loops of stages, from the innermost outwards, and a code of each.

    Parameters
    ----------
    stages : sequence of Stage or None
        Stages, those with the most loops first.
    primitives : sequence of Primitive
        The replayed primitives.

    Returns
    -------
    sizes : ndarray of int32, shape (`STAGES`, `PARTS`)
        Places of sizes; -1 after the last one of a stage.
    codes : ndarray of int8, shape (`STAGES`, `PARTS`)
    """
    sizes = np.full((STAGES, PARTS), -1, dtype=np.int32)
    codes = np.full((STAGES, PARTS), _NO_PART, dtype=np.int8)
    for row, stage in enumerate(stages[:STAGES]):
        loops = stage.loops if stage else []
        # Spatial axes are split into at least four parts, and reductions into at most three.
        spatial = [size // SIZES for loop in loops for size in loop.sizes if _factors(primitives, size) >= 3]
        last = max(spatial, default=-1)
        parts = []
        is_rolled = False
        for loop in reversed(loops):
            is_rolled |= loop.annotation == PARALLEL or not loop.sizes
            flags = (_VECTORIZED if loop.annotation == VECTORIZE else 0) + (_ROLLED if is_rolled else 0)
            parts += [(size, flags + _axis_code(size, primitives, last)) for size in reversed(loop.sizes)]
        for place, (size, code) in enumerate(parts[:PARTS]):
            sizes[row, place], codes[row, place] = size, code
    return sizes, codes


def _factors(primitives: Sequence[Primitive], size: int) -> int:
    factors = primitives[size // SIZES].args[3]
    assert isinstance(factors, tuple), "only splits have sizes"
    return len(factors)


def _axis_code(size: int, primitives: Sequence[Primitive], last: int) -> int:
    split, level = divmod(size, SIZES)
    role = _REDUCTION if _factors(primitives, size) < 3 else _LAST if split == last else _OTHER
    return role + level * _LEVEL


def numbers_of(parts: Floats, codes: Codes, steps: Floats) -> Floats:
    """Return the features of candidates, shape (candidates, `WIDTH`); most are logarithms to base 2.

    Parameters
    ----------
    parts : ndarray of float32, shape (candidates, `STAGES`, `PARTS`)
        Logarithms of the sizes, see `parts_of`; 0 for none.
    codes : ndarray of int8, shape (candidates, `STAGES`, `PARTS`)
    steps : ndarray of float32, shape (candidates, `STAGES`)
        Logarithms of 1 + the largest unroll step.
    """
    # Candidates are the last axis, so that each operation on a part is vectorized over candidates.
    by_stage = np.ascontiguousarray(parts.transpose(1, 2, 0))
    codes = np.ascontiguousarray(codes.transpose(1, 2, 0))
    numbers = []
    is_part = codes & 3 != _NO_PART
    for stage in range(STAGES):
        used = 1 + max(np.flatnonzero(is_part[stage].any(1)), default=0)
        own_codes, step = codes[stage, :used], np.where(is_part[stage].any(0), steps[:, stage], 0)
        by_role = [np.where(own_codes & 3 == role, by_stage[stage, :used], np.float32(0)) for role in _ROLES]
        if stage == 0:
            numbers += [*_tiles(by_role, own_codes, step), *_traffic(by_role)]
        numbers += _unrolled(by_role, own_codes, step)
    return np.stack(numbers, axis=1)


def _tiles(by_role: list[Floats], codes: Codes, step: Floats) -> list[Floats]:
    """Return features of tiles.

    They are the iterations from each tile level inwards by role, the unroll step relative to each body, and
    the share of vector lanes in use.
    """
    levels = codes // _LEVEL
    last, other, reduction = (
        [_total(np.where(levels >= level, parts, 0)) for level in range(_LEVELS)] for parts in by_role
    )
    both = [one + two for one, two in zip(last, other, strict=True)]
    vector = _total(np.where(codes & _VECTORIZED, _total(by_role), 0))
    bodies = [step + vector - both[level] - reduction[inner] for level, inner in _BODIES]
    lanes = np.exp2(np.minimum(vector, _MAX_VECTOR)) / _LANES
    return [*last, *other, *both, *reduction[:_REDUCTION_LEVELS], *bodies, lanes / np.ceil(lanes - _ROUNDING)]


def _unrolled(by_role: list[Floats], codes: Codes, step: Floats) -> list[Floats]:
    """Return features of unrolling: iterations, touched elements, and the loop that ends the unrolling."""
    parts = _total(by_role)
    is_vector = codes & _VECTORIZED != 0
    plain = np.where(is_vector, 0, parts)
    is_open = codes & _ROLLED == 0
    within = (_running(plain) < step - _ROUNDING) & is_open
    counted = within & ~is_vector
    last, other, reduction = (_total(np.where(counted, role, 0)) for role in by_role)
    ends = ~within & is_open & (plain > 0)
    is_end = ends & (_running(ends.astype(np.int8)) == 1)
    ending = [_total(np.where(is_end, role, 0)) for role in by_role]
    vector = _total(np.where(is_vector, parts, 0))
    body = last + other + reduction
    weights, inputs, output = last + reduction, other + reduction, last + other
    return [
        last,
        other,
        reduction,
        body,
        *ending,
        (counted & (parts > 0)).sum(0, dtype=np.float32),
        weights,
        inputs,
        output,
        body - _log_sum(weights, inputs),
        _log_sum(weights, inputs, output),
        vector,
        vector + output,
    ]


def _traffic(by_role: list[Floats]) -> list[Floats]:
    """Return features of memory traffic.

    They are, for each memory, the loads per iteration of each operand and in total, and the iterations of the
    body.
    """
    nothing = np.zeros((1, by_role[0].shape[1]), dtype=np.float32)
    # Index n: the sum over the n innermost parts.
    inside = [np.concatenate([nothing, _running(parts)]) for parts in by_role]
    touched = [inside[one] + inside[two] for one, two, _ in _OPERANDS]
    footprint = _log_sum(*(operand[1:] for operand in touched))
    candidates = np.arange(nothing.shape[1])
    numbers = []
    for memory in _MEMORIES:
        fitting = (footprint <= memory + _ROUNDING).sum(0)
        body = [parts[fitting, candidates] for parts in inside]
        iterations = body[_LAST] + body[_OTHER] + body[_REDUCTION]
        loads = []
        for operand, (one, two, free) in zip(touched, _OPERANDS, strict=True):
            loaded = body[one] + body[two]
            # An operand stays loaded across the enclosing loops that do not enlarge its footprint.
            staying = (operand <= loaded + _ROUNDING).sum(0) - 1
            loads.append(loaded - iterations - (inside[free][staying, candidates] - body[free]))
        numbers += [*loads, _log_sum(*loads), iterations]
    return numbers


def _running(rows: Floats) -> Floats:
    """Return the running sums of rows; `numpy.cumsum` is slow along this axis."""
    return np.stack(list(accumulate(rows, np.add)))


def _total(rows: Floats | Sequence[Floats]) -> Floats:
    """Return the sum of rows, always added in the same order.

    The order of `numpy.sum` depends on the number of candidates, which would change scores by rounding.
    """
    found: Floats = reduce(np.add, rows)
    return found


def _log_sum(*logs: Floats) -> Floats:
    """Return the logarithm of a sum from the logarithms of its terms, without overflow for huge sizes."""
    largest = logs[0]
    for log in logs[1:]:
        largest = np.maximum(largest, log)
    found: Floats = largest + np.log2(sum(np.exp2(log - largest) for log in logs))
    return found
