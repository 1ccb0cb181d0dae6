"""The features of a candidate in `loopnest`: numbers that describe the loop nest its schedule produces.

They are logarithms of loop extents and tile sizes, sums of these, and constants of the candidate's skeleton
(see `tlp_service.families.loopnest.skeleton`). They depend on the candidate only. The features of each of the
four stages with the most loops are:

- the number of iterations: of all loops, of each tile level of the spatial and of the reduction loops, and of
  the loops of each annotation;
- iterations outside and inside the loop at which it is computed; its largest unroll step;
- the tile sizes of the axis that is innermost;
- for each of its innermost loops: extent, product of the extents from there inwards, kind of axis, tile
  level, vectorized, parallel.

Further features describe unrolling in the first three stages, and tiles and memory traffic in the first one
(see `tlp_service.families.loopnest.reuse`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tlp_client.primitives import Primitive
from tlp_service.families.loopnest import reuse
from tlp_service.families.loopnest.loop_nest import SIZES
from tlp_service.families.loopnest.skeleton import (
    CONSTANTS,
    INNERMOST,
    LOOPS,
    SKELETONS,
    SUMS,
    UNROLL_STEPS,
    Skeleton,
    digest_of,
    separate,
)
from tlp_service.scheduling.steps import Steps, finished

Floats = npt.NDArray[np.float32]

#: Number of features of a candidate.
NEST_WIDTH = SUMS + 2 * LOOPS + CONSTANTS + reuse.WIDTH

#: Divisor of all logarithms, which brings them near 1.
_SCALE = 8.0

#: Places (candidates times primitives) per step.
_BLOCK_PLACES = 1 << 16
#: Distinct primitives per step.
_STEP_PRIMITIVES = 1024
#: Maximum numbers that are gathered at a time: candidates times the sizes of their skeleton.
_GATHERED = 1 << 20
#: Measured units of work (see `tlp_service.scheduling.steps`) per block, distinct primitive, candidate,
#: place, replayed skeleton, and primitive of a replayed skeleton.
_BLOCK_COST, _PRIMITIVE_COST, _CANDIDATE_COST, _PLACE_COST = 32_000, 150, 200, 10
_SKELETON_COST, _REPLAY_COST = 6_000, 600
#: Minimum places of a candidate, since even the shortest one takes about 8 kB of memory.
_MIN_PLACES = 16
#: Maximum absolute feature: the limit of half precision, with a margin.
_MAX_VALUE = 6e4


def nests(
    primitives: Sequence[Primitive], indices: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.float16]:
    """Return the features of candidates, shape (candidates, `NEST_WIDTH`).

    They have half precision, as in training. It represents logarithms to three digits.

    Parameters
    ----------
    primitives : sequence of Primitive
        The distinct primitives.
    indices : ndarray of int, shape (sum of lengths,)
        Primitives of all candidates, one candidate after the other.
    lengths : ndarray of int, shape (candidates,)
        Number of primitives of each candidate, at most `tlp_client.primitives.MAX_STEPS`.
    """
    return finished(nests_in_steps(primitives, indices, lengths))


def nests_in_steps(
    primitives: Sequence[Primitive], indices: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> Steps[npt.NDArray[np.float16]]:
    """Compute the result of `nests`, in steps of bounded time."""
    out = np.empty((len(lengths), NEST_WIDTH), dtype=np.float16)
    tables = yield from _tables(primitives)
    starts = np.cumsum(lengths) - lengths
    # Process candidates in blocks, sorted by length: the arrays of a block have as many places per candidate
    # as its longest candidate.
    order = np.argsort(lengths, kind="stable")
    begin = 0
    while begin < len(order):
        places = np.maximum(lengths[order[begin : begin + _BLOCK_PLACES]], _MIN_PLACES)
        count = max(
            1, int(np.searchsorted(places * np.arange(1, len(places) + 1), _BLOCK_PLACES, side="right"))
        )
        chosen = order[begin : begin + count]
        yield _BLOCK_COST + count * (_CANDIDATE_COST + int(places[count - 1]) * _PLACE_COST)
        out[chosen] = yield from _block(tables, indices, starts[chosen], lengths[chosen])
        begin += count
    return out


def _block(
    tables: _Tables,
    indices: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> Steps[Floats]:
    """Return the features of the candidates that begin at `starts` in `indices`."""
    out = np.empty((len(lengths), NEST_WIDTH), dtype=np.float32)
    place = np.arange(max(1, int(lengths.max())))
    is_real = place < lengths[:, None]
    row = np.zeros(is_real.shape, dtype=np.int32)
    row[is_real] = 1 + indices[(starts[:, None] + place)[is_real]]
    # The additional last column is 0. It serves as the sum of no sizes.
    logs = np.zeros((len(lengths), len(place) * SIZES + 1), dtype=np.float32)
    logs[:, :-1] = tables.sizes[row].reshape(len(lengths), -1)
    first, groups = _groups(tables.skeleton_of[row])
    parts = np.empty((len(lengths), reuse.STAGES, reuse.PARTS), dtype=np.float32)
    codes = np.empty(parts.shape, dtype=np.int8)
    for candidate, members in zip(first, groups, strict=True):
        skeleton = yield from _skeleton(tables, row[candidate, : lengths[candidate]])
        for some in np.split(members, _cuts(len(members), len(skeleton.sizes))):
            out[some, : SUMS + LOOPS] = np.add.reduceat(
                logs[some[:, None], skeleton.sizes], skeleton.starts, axis=1
            )
        out[members, SUMS + 2 * LOOPS : -reuse.WIDTH] = skeleton.constants
        parts[members] = logs[members[:, None, None], skeleton.parts]
        codes[members] = skeleton.codes
    end = SUMS
    for loops in INNERMOST:
        begin, end = end, end + loops
        np.cumsum(out[:, begin:end], axis=1, out=out[:, begin + LOOPS : end + LOOPS])
    steps = out[:, UNROLL_STEPS]
    out[:, -reuse.WIDTH :] = reuse.numbers_of(parts * _SCALE, codes, steps * _SCALE) / _SCALE
    return np.clip(out, -_MAX_VALUE, _MAX_VALUE)


def _skeleton(tables: _Tables, rows: npt.NDArray[np.int32]) -> Steps[Skeleton]:
    """Return the skeleton of a candidate with these rows; replaying an unknown one is a step of its own."""
    primitives = [tables.skeletons[n] for n in tables.skeleton_of[rows].tolist()]
    key = digest_of(text for _, text in primitives)
    found = SKELETONS.find(key)
    if found is None:
        yield _SKELETON_COST + _REPLAY_COST * len(primitives)
        found = SKELETONS.replay(key, [primitive for primitive, _ in primitives])
    return found


def _cuts(members: int, sizes: int) -> range:
    """Return where to split the candidates of a skeleton, so that each part gathers `_GATHERED` at most."""
    some = max(1, _GATHERED // sizes)
    return range(some, members, some)


@dataclass(frozen=True, slots=True)
class _Tables:
    """The distinct primitives of a request, as sizes and skeletons.

    Parameters
    ----------
    sizes : ndarray of float32, shape (1 + primitives, SIZES)
        Logarithms of the sizes of each primitive, after a row of zeros for no primitive.
    skeleton_of : ndarray of int32, shape (1 + primitives,)
        Number of the skeleton of each primitive; -1 for no primitive.
    skeletons : list of (Primitive, bytes)
        Each distinct primitive without its sizes, and a text that identifies it.
    """

    sizes: Floats
    skeleton_of: npt.NDArray[np.int32]
    skeletons: list[tuple[Primitive, bytes]]


def _tables(primitives: Sequence[Primitive]) -> Steps[_Tables]:
    sizes = np.zeros((1 + len(primitives), SIZES), dtype=np.float32)
    skeleton_of = np.full(1 + len(primitives), -1, dtype=np.int32)
    numbers: dict[Primitive, int] = {}
    for begin in range(0, len(primitives), _STEP_PRIMITIVES):
        some = primitives[begin : begin + _STEP_PRIMITIVES]
        yield len(some) * _PRIMITIVE_COST
        for place, primitive in enumerate(some, start=1 + begin):
            skeleton, logs = separate(primitive)
            if logs is not None:
                sizes[place, : len(logs)] = logs
            skeleton_of[place] = numbers.setdefault(skeleton, len(numbers))
    sizes /= _SCALE
    return _Tables(sizes, skeleton_of, [(skeleton, repr(tuple(skeleton)).encode()) for skeleton in numbers])


def _groups(
    skeletons: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[np.int64]]]:
    """Return the first candidate of each distinct row, and all candidates with that row."""
    rows = np.ascontiguousarray(skeletons)
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(np.bincount(group))
    return first, np.split(order, ends[:-1])
