"""A skeleton: a schedule without its sizes, and the recipe to compute features from sizes.

The recipe lists the sizes in each sum of logarithms (see `tlp_service.families.loopnest.features`), the
features that do not depend on sizes, and the parts of loops for `tlp_service.families.loopnest.reuse`. There
are few skeletons, so each is replayed once and cached.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt

from tlp_client.primitives import Primitive
from tlp_service.families.loopnest import reuse
from tlp_service.families.loopnest.loop_nest import (
    BOUND,
    FACTORS,
    MAX_LOOPS,
    PARALLEL,
    UNROLL,
    VECTORIZE,
    Loop,
    Sizes,
    Stage,
    replay,
    sizes_of,
)

Floats = npt.NDArray[np.float32]

#: Number of innermost loops that are described, for each of the stages with the most loops.
INNERMOST = (16, 8, 6, 6)
_SPATIAL_LEVELS, _REDUCTION_LEVELS, _OWN_LEVELS = 5, 3, 5
#: ``IteratorAnnotation``s that count as one: unroll, vectorize, parallel, vthread, blockIdx, threadIdx.
_ANNOTATIONS = ((1,), (2,), (3,), (4,), (5, 7, 9), (6, 8, 10))
_KINDS = "SRF?"

#: Index of the unroll step among the sums of a stage.
_UNROLL_SUM = 1 + _SPATIAL_LEVELS + _REDUCTION_LEVELS + len(_ANNOTATIONS) + 2
_SUMS_A_STAGE = _UNROLL_SUM + 1 + _OWN_LEVELS
_CONSTANTS_A_STAGE, _CONSTANTS_A_LOOP = 6, len(_KINDS) + 3
_CONSTANTS_OF_ALL = 5

#: Number of sums, of described loops, and of constant features of a candidate; and the indices of the unroll
#: steps among the sums.
SUMS = len(INNERMOST) * _SUMS_A_STAGE
LOOPS = sum(INNERMOST)
CONSTANTS = len(INNERMOST) * _CONSTANTS_A_STAGE + _CONSTANTS_OF_ALL + LOOPS * _CONSTANTS_A_LOOP
UNROLL_STEPS = [stage * _SUMS_A_STAGE + _UNROLL_SUM for stage in range(reuse.STAGES)]

#: Maximum bytes of the cache of replayed skeletons. A skeleton of a search takes about 7 kB, and the largest
#: valid one about 100 kB.
_KEPT_BYTES = 32 << 20
#: Estimated bytes of the Python objects of a skeleton, beside its arrays.
_OBJECT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A replayed skeleton: the recipe to compute features from sizes.

    Parameters
    ----------
    sizes, starts : ndarray of int
        Sizes of all sums one after the other (-1, the last column, for a sum of none), and where each sum
        begins.
    constants : ndarray of float32
        Features that do not depend on sizes.
    parts, codes : ndarray of int
        Sizes of the parts of loops, see `tlp_service.families.loopnest.reuse.parts_of`.
    """

    sizes: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    constants: Floats
    parts: npt.NDArray[np.int32]
    codes: reuse.Codes

    @property
    def nbytes(self) -> int:
        """Bytes of the skeleton."""
        arrays = (self.sizes, self.starts, self.constants, self.parts, self.codes)
        return _OBJECT_BYTES + sum(array.nbytes for array in arrays)


class _Skeletons:
    """Cache of replayed skeletons by a digest of their primitives; the oldest are evicted first. Thread-safe.

    Parameters
    ----------
    max_bytes : int
        Maximum bytes of all cached skeletons.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: dict[bytes, Skeleton] = {}
        self._bytes = 0
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of the cached skeletons."""
        return self._bytes

    def find(self, key: bytes) -> Skeleton | None:
        """Return the cached skeleton of a digest, or None."""
        return self._kept.get(key)

    def replay(self, key: bytes, primitives: Sequence[Primitive]) -> Skeleton:
        """Replay the skeleton of a digest, and cache it."""
        found = _replayed(primitives)
        with self._lock:
            self._forget(key)
            while self._kept and self._bytes + found.nbytes > self._max_bytes:
                self._forget(next(iter(self._kept)))
            self._kept[key] = found
            self._bytes += found.nbytes
        return found

    def clear(self) -> None:
        """Remove all skeletons."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def _forget(self, key: bytes) -> None:
        known = self._kept.pop(key, None)
        if known is not None:
            self._bytes -= known.nbytes


def digest_of(texts: Iterable[bytes]) -> bytes:
    """Return a digest of the texts of a skeleton's primitives, so that cache keys have a fixed size."""
    return hashlib.blake2b(b"\0".join(texts), digest_size=16).digest()


SKELETONS = _Skeletons(_KEPT_BYTES)

#: Replaces a primitive whose list is longer than any loop nest. Replaying it has no effect.
_NOTHING = Primitive("?", ())


def separate(primitive: Primitive) -> tuple[Primitive, list[float] | None]:
    """Return a primitive without its sizes, and their logarithms."""
    if any(isinstance(argument, tuple) and len(argument) > MAX_LOOPS for argument in primitive.args):
        return _NOTHING, None
    if primitive.kind == "SP":
        stage, loop, extent, factors, inner = primitive.args
        assert isinstance(extent, int), "read_primitive checks it"
        assert isinstance(factors, tuple), "read_primitive checks it"
        inside = math.prod(max(factor, 1) for factor in factors)
        logs = [_log(-(-extent // inside)), *map(_log, factors)]
        # If there are more factors than a skeleton distinguishes, the last one includes the rest.
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


def _replayed(primitives: Sequence[Primitive]) -> Skeleton:
    stages = replay(primitives)
    live = [stage for stage in stages if stage.loops and not stage.inlined]
    numbered = sorted(enumerate(live), key=lambda pair: (-len(pair[1].loops), -pair[0]))
    described: list[Stage | None] = [stage for _, stage in numbered[: len(INNERMOST)]]
    described += [None] * (len(INNERMOST) - len(described))
    sums: list[Sizes] = []
    loops: list[Loop | None] = []
    constants: list[float] = []
    for stage, count in zip(described, INNERMOST, strict=True):
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
    is_bound = any(loop.annotation >= BOUND for stage in stages for loop in stage.loops)
    parts, codes = reuse.parts_of([] if is_bound else described, primitives)
    return Skeleton(flat, starts, np.array(constants, dtype=np.float32), parts, codes)


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
        float(sum(loop.annotation == VECTORIZE for loop in stage.loops)),
        float(sum(loop.annotation == PARALLEL for loop in stage.loops)),
    ]


def _constants_of_loop(loop: Loop | None) -> list[float]:
    if loop is None:
        return [0.0] * _CONSTANTS_A_LOOP
    kinds = [float(loop.kind == kind) for kind in _KINDS]
    return [*kinds, loop.level / 4, float(loop.annotation == VECTORIZE), float(loop.annotation == PARALLEL)]
