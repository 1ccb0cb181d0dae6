"""The features of `base`: the loop nest of each candidate, and one row a task.

A candidate's numbers (`nests`) are logarithms of loop extents and tile sizes, sums of them, and what its skeleton alone decides, see
`tlp_service.features.loop_nest`. They depend on the candidate only. Of the four stages with the most loops:

- iterations in all, of each tile level of the spatial and of the reduction loops, and of the loops of each annotation;
- iterations outside and inside the loop at which it is computed; its largest unroll step;
- the tile sizes of the axis that is innermost;
- its innermost loops: extent, extent of all from there inwards, what it runs over, tile level, vectorized, parallel.

And what the loops of the first three unroll, and those of the first hold and must load, see `tlp_service.features.reuse`.

The task's row holds the numbers of its workload key, a class of its name, and the platform.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt

from tlp_client.primitives import Primitive
from tlp_service.features import reuse
from tlp_service.features.loop_nest import (
    FACTORS,
    MOST_LOOPS,
    SIZES,
    UNROLL,
    Loop,
    Sizes,
    Stage,
    replay,
    sizes_of,
)

Floats = npt.NDArray[np.float32]

#: Innermost loops that are described, of the stages with the most loops.
_INNERMOST = (16, 8, 6, 6)
_SPATIAL_LEVELS, _REDUCTION_LEVELS, _OWN_LEVELS = 5, 3, 5
#: ``IteratorAnnotation``s that count as one: unroll, vectorize, parallel, vthread, blockIdx, threadIdx.
_ANNOTATIONS = ((1,), (2,), (3,), (4,), (5, 7, 9), (6, 8, 10))
#: From here on loops are bound to GPU threads.
_BOUND = 4
_KINDS = "SRF?"

#: Which of a stage's sums is its unroll step.
_UNROLL_SUM = 1 + _SPATIAL_LEVELS + _REDUCTION_LEVELS + len(_ANNOTATIONS) + 2
_SUMS_A_STAGE = _UNROLL_SUM + 1 + _OWN_LEVELS
_CONSTANTS_A_STAGE, _CONSTANTS_A_LOOP = 6, len(_KINDS) + 3
_CONSTANTS_OF_ALL = 5

_SUMS = len(_INNERMOST) * _SUMS_A_STAGE
_LOOPS = sum(_INNERMOST)
_CONSTANTS = len(_INNERMOST) * _CONSTANTS_A_STAGE + _CONSTANTS_OF_ALL + _LOOPS * _CONSTANTS_A_LOOP

#: Numbers of a candidate.
NEST_WIDTH = _SUMS + 2 * _LOOPS + _CONSTANTS + reuse.WIDTH

#: Platforms that a version can tell from each other.
PLATFORMS = 64
_KEY_NUMBERS = 24
#: Where the piecewise linear functions of a logarithm have their corners.
_CORNERS = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 21], dtype=np.float64)
_A_NUMBER = len(_CORNERS) + 6
#: Classes into which the names of operators fall.
_NAMES = 64
#: Numbers of a task.
TASK_WIDTH = _KEY_NUMBERS * (1 + _A_NUMBER) + 3 + _NAMES + PLATFORMS

#: Logarithms are divided by it.
_SCALE = 8.0

#: A candidate has no more primitives; the longest of 600,000 public records has 76.
MOST_STEPS = 512

#: Skeletons that are kept replayed; each takes some 7 kB.
_KEPT_SKELETONS = 8192
#: Places, of candidates times their primitives, that are laid out at a time.
_BLOCK_PLACES = 1 << 18
#: Of half precision, with a margin.
_LARGEST = 6e4


def nests(
    primitives: Sequence[Primitive], indices: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.float16]:
    """Return the numbers of candidates, shape (candidates, `NEST_WIDTH`).

    In half precision, which holds logarithms to three digits and is what networks are trained on.

    Parameters
    ----------
    primitives : sequence of Primitive
        The distinct ones.
    indices : ndarray of int, shape (sum of lengths,)
        Primitives of all candidates, one candidate after the other.
    lengths : ndarray of int, shape (candidates,)
        Primitives of each, `MOST_STEPS` at most.
    """
    out = np.empty((len(lengths), NEST_WIDTH), dtype=np.float16)
    tables = _tables(primitives)
    starts = np.cumsum(lengths) - lengths
    # By length, in blocks: what is laid out for a block has as many places for each candidate as the longest has.
    order = np.argsort(lengths, kind="stable")
    begin = 0
    while begin < len(order):
        places = np.maximum(lengths[order[begin:]], 1)
        count = max(
            1, int(np.searchsorted(places * np.arange(1, len(places) + 1), _BLOCK_PLACES, side="right"))
        )
        chosen = order[begin : begin + count]
        out[chosen] = _block(tables, indices, starts[chosen], lengths[chosen])
        begin += count
    return out


def _block(
    tables: _Tables,
    indices: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> Floats:
    """Return the numbers of candidates that begin at places of `indices`."""
    out = np.empty((len(lengths), NEST_WIDTH), dtype=np.float32)
    place = np.arange(max(1, int(lengths.max())))
    is_real = place < lengths[:, None]
    row = np.zeros(is_real.shape, dtype=np.int32)
    row[is_real] = 1 + indices[(starts[:, None] + place)[is_real]]
    # One column more than the sizes: 0, the sum of none.
    logs = np.zeros((len(lengths), len(place) * SIZES + 1), dtype=np.float32)
    logs[:, :-1] = tables.sizes[row].reshape(len(lengths), -1)
    first, groups = _groups(tables.skeleton_of[row])
    parts = np.empty((len(lengths), reuse.STAGES, reuse.PARTS), dtype=np.float32)
    codes = np.empty(parts.shape, dtype=np.int8)
    for candidate, members in zip(first, groups, strict=True):
        numbers = tables.skeleton_of[row[candidate, : lengths[candidate]]]
        skeleton = _SKELETONS.get([tables.skeletons[n] for n in numbers.tolist()])
        summed = np.add.reduceat(logs[members[:, None], skeleton.sizes], skeleton.starts, axis=1)
        out[members, : _SUMS + _LOOPS] = summed
        out[members, _SUMS + 2 * _LOOPS : -reuse.WIDTH] = skeleton.constants
        parts[members] = logs[members[:, None], skeleton.parts].reshape(-1, reuse.STAGES, reuse.PARTS)
        codes[members] = skeleton.codes
    end = _SUMS
    for loops in _INNERMOST:
        begin, end = end, end + loops
        np.cumsum(out[:, begin:end], axis=1, out=out[:, begin + _LOOPS : end + _LOOPS])
    steps = out[:, [stage * _SUMS_A_STAGE + _UNROLL_SUM for stage in range(reuse.STAGES)]]
    out[:, -reuse.WIDTH :] = reuse.numbers_of(parts * _SCALE, codes, steps * _SCALE) / _SCALE
    return np.clip(out, -_LARGEST, _LARGEST)


def task_row(workload_key: str, platform: int | None) -> Floats:
    """Return the row of a task, shape (`TASK_WIDTH`,).

    Parameters
    ----------
    workload_key : str
        As TVM writes it: the name of a function, or the hash of a graph; whole numbers in it are extents and attributes.
    platform : int or None
        Number of the platform among those of the version; None where it is none of them.
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
    """Return the column of a task's row that tells its platform."""
    return TASK_WIDTH - PLATFORMS + platform


@dataclass(frozen=True, slots=True)
class _Skeleton:
    """What a replayed skeleton makes of sizes.

    Parameters
    ----------
    sizes, starts : ndarray of int
        Sizes of all sums one after the other (-1, the last column, for a sum of none), and where each sum begins.
    constants : ndarray of float32
        What does not depend on sizes.
    parts, codes : ndarray of int
        Sizes of which the loops are made, see `tlp_service.features.reuse.parts_of`.
    """

    sizes: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    constants: Floats
    parts: npt.NDArray[np.int32]
    codes: reuse.Codes


@dataclass(frozen=True, slots=True)
class _Tables:
    """What the distinct primitives of a request are.

    Parameters
    ----------
    sizes : ndarray of float32, shape (1 + primitives, SIZES)
        Their logarithms, behind a row of zeros for no primitive.
    skeleton_of : ndarray of int32, shape (1 + primitives,)
        Number of the skeleton of each, -1 for no primitive.
    skeletons : list of (Primitive, bytes)
        Without sizes, and the text that tells one from others.
    """

    sizes: Floats
    skeleton_of: npt.NDArray[np.int32]
    skeletons: list[tuple[Primitive, bytes]]


def _tables(primitives: Sequence[Primitive]) -> _Tables:
    sizes = np.zeros((1 + len(primitives), SIZES), dtype=np.float32)
    skeleton_of = np.full(1 + len(primitives), -1, dtype=np.int32)
    numbers: dict[Primitive, int] = {}
    for place, primitive in enumerate(primitives, start=1):
        skeleton, logs = _separate(primitive)
        if logs is not None:
            sizes[place, : len(logs)] = logs
        skeleton_of[place] = numbers.setdefault(skeleton, len(numbers))
    sizes /= _SCALE
    return _Tables(sizes, skeleton_of, [(skeleton, repr(tuple(skeleton)).encode()) for skeleton in numbers])


class _Skeletons:
    """Replayed skeletons, by a digest, so that what is kept does not grow with what is asked; the oldest go first. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[bytes, _Skeleton] = {}
        self._lock = Lock()

    def get(self, primitives: Sequence[tuple[Primitive, bytes]]) -> _Skeleton:
        """Return what a skeleton makes of sizes, given its primitives and their texts."""
        key = hashlib.blake2b(b"\0".join(text for _, text in primitives), digest_size=16).digest()
        found = self._kept.get(key)
        if found is None:
            found = _replayed([primitive for primitive, _ in primitives])
            with self._lock:
                while len(self._kept) >= self._most:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = found
        return found

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._kept.clear()


_SKELETONS = _Skeletons(_KEPT_SKELETONS)

#: What a primitive with a list longer than any loop nest is replayed as: nothing.
_NOTHING = Primitive("?", ())


def _separate(primitive: Primitive) -> tuple[Primitive, list[float] | None]:
    """Return a primitive without its sizes, and their logarithms."""
    if any(isinstance(argument, tuple) and len(argument) > MOST_LOOPS for argument in primitive.args):
        return _NOTHING, None
    if primitive.kind == "SP":
        stage, loop, extent, factors, inner = primitive.args
        assert isinstance(extent, int), "read_primitive checks it"
        assert isinstance(factors, tuple), "read_primitive checks it"
        inside = math.prod(max(factor, 1) for factor in factors)
        logs = [_log(-(-extent // inside)), *map(_log, factors)]
        # Of more factors than a skeleton tells apart, the last holds the rest.
        logs[FACTORS:] = [sum(logs[FACTORS:])] if len(factors) >= FACTORS else []
        return Primitive("SP", (stage, loop, 0, (0,) * min(len(factors), FACTORS), inner)), logs
    if primitive.kind == "PR":
        stage, loop, pragma = primitive.args
        name, _, value = str(pragma).partition("$")
        step = int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else 0
        return Primitive("PR", (stage, loop, name)), [0.0] * UNROLL + [math.log2(1 + step)]
    return primitive, None


def _log(size: int) -> float:
    return math.log2(size) if size > 0 else 0.0


def _groups(
    skeletons: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[np.int64]]]:
    """Return the first candidate of each distinct row, and all candidates that have it."""
    rows = np.ascontiguousarray(skeletons)
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(np.bincount(group))
    return first, np.split(order, ends[:-1])


def _replayed(primitives: Sequence[Primitive]) -> _Skeleton:
    stages = replay(primitives)
    live = [stage for stage in stages if stage.loops and not stage.inlined]
    numbered = sorted(enumerate(live), key=lambda pair: (-len(pair[1].loops), -pair[0]))
    described: list[Stage | None] = [stage for _, stage in numbered[: len(_INNERMOST)]]
    described += [None] * (len(_INNERMOST) - len(described))
    sums: list[Sizes] = []
    loops: list[Loop | None] = []
    constants: list[float] = []
    for stage, count in zip(described, _INNERMOST, strict=True):
        sums += _sums_of(stage)
        constants += _constants_of(stage)
        innermost: list[Loop | None] = [*reversed(stage.loops[-count:])] if stage else []
        loops += innermost + [None] * (count - len(innermost))
    sums += [loop.sizes if loop else () for loop in loops]
    constants += [
        len(live) / 8,
        len(stages) / 8,
        sum(stage.inlined for stage in stages) / 4,
        sum(stage.attached is not None for stage in stages) / 4,
        len(primitives) / 32,
    ]
    for loop in loops:
        constants += _constants_of_loop(loop)
    filled = [sizes or (-1,) for sizes in sums]
    starts = np.cumsum([0, *map(len, filled)])[:-1]
    flat = np.array([size for sizes in filled for size in sizes], dtype=np.int32)
    is_bound = any(loop.annotation >= _BOUND for stage in stages for loop in stage.loops)
    parts, codes = reuse.parts_of([] if is_bound else described, primitives)
    return _Skeleton(
        flat, starts, np.array(constants, dtype=np.float32), np.array(parts, dtype=np.int32), codes
    )


def _sums_of(stage: Stage | None) -> list[Sizes]:
    if stage is None:
        return [()] * _SUMS_A_STAGE
    loops = stage.loops
    own = [loop for loop in loops if loop.axis == loops[-1].axis]
    outside, inside = [], []
    if stage.attached is not None:
        target, at = stage.attached
        outside, inside = target.loops[: at + 1], target.loops[at + 1 :]
    return [
        sizes_of(loops),
        *_by_level([loop for loop in loops if loop.kind == "S"], _SPATIAL_LEVELS),
        *_by_level([loop for loop in loops if loop.kind == "R"], _REDUCTION_LEVELS),
        *(sizes_of(loop for loop in loops if loop.annotation in group) for group in _ANNOTATIONS),
        sizes_of(outside),
        sizes_of(inside),
        stage.unroll,
        *_by_level(own, _OWN_LEVELS),
    ]


def _by_level(loops: Sequence[Loop], levels: int) -> list[Sizes]:
    return [sizes_of(loop for loop in loops if loop.level == level) for level in range(levels)]


def _constants_of(stage: Stage | None) -> list[float]:
    if stage is None:
        return [0.0] * _CONSTANTS_A_STAGE
    return [
        1.0,
        len(stage.loops) / 16,
        float(stage.attached is not None),
        stage.attached[1] / 16 if stage.attached is not None else 0.0,
        float(sum(loop.annotation == 2 for loop in stage.loops)),
        float(sum(loop.annotation == 3 for loop in stage.loops)),
    ]


def _constants_of_loop(loop: Loop | None) -> list[float]:
    if loop is None:
        return [0.0] * _CONSTANTS_A_LOOP
    kinds = [float(loop.kind == kind) for kind in _KINDS]
    return [*kinds, loop.level / 4, float(loop.annotation == 2), float(loop.annotation == 3)]


def _read_key(workload_key: str) -> tuple[str, list[int]]:
    """Return the name and the whole numbers of a workload key; of one that is not JSON the key and none."""
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


def _multiplicity(number: int, prime: int, most: int) -> int:
    found = 0
    while found < most and number % prime == 0:
        number //= prime
        found += 1
    return found
