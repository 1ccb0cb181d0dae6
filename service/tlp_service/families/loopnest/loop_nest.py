"""The loop nest that a schedule produces, replayed from its primitives without TVM.

A candidate's *skeleton* is its primitives without the sizes that a search draws: the factors of splits and the
unroll step. There are few skeletons: one per task on GPUs, dozens on CPUs. Each is replayed once,
symbolically: a loop's extent is a product of *sizes*, each identified by its primitive and factor. The
features that depend on sizes are then sums of logarithms, computed for all candidates of the skeleton at once.

For loops, the rules are those of TVM's ``transform_step.cc`` (0.19). A record does not list the initial loops
of a stage. A loop of unknown extent is therefore added when a primitive first refers to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from tlp_client.primitives import Primitive

#: Number of sizes per primitive: the outer extent of a split, four factors (the last includes any further
#: ones), and the unroll step.
SIZES = 6
FACTORS = 4
UNROLL = SIZES - 1

#: ``IteratorAnnotation``s of TVM; from `BOUND` on loops are bound to GPU threads.
VECTORIZE, PARALLEL, BOUND = 2, 3, 4

#: Maximum loops of a stage, stages of a program, and entries of a list of loops. TVM's own have at most about
#: 30.
MAX_LOOPS = 64

#: Kind of a loop: spatial, reduction (recognized by the number of factors in Ansor's multi-level tiling), fused,
#: unknown.
Kind = Literal["S", "R", "F", "?"]

Sizes = tuple[int, ...]


@dataclass(slots=True)
class Loop:
    """A loop of a stage.

    Parameters
    ----------
    sizes : tuple of int
        Its extent is the product of these; size ``i`` is number ``i % SIZES`` of primitive ``i // SIZES``.
    kind : {"S", "R", "F", "?"}
        Kind of the axis over which the loop runs.
    level : int
        Tile level, where 0 is outermost. For a fused loop, the number of loops that were fused.
    axis : int
        Number of the axis. Loops that were split from one loop share it.
    annotation : int
        ``IteratorAnnotation`` of TVM: 1 unroll, `VECTORIZE`, `PARALLEL`, 4 vthread, 5 and more GPU threads.
    """

    sizes: Sizes
    kind: Kind = "?"
    level: int = 0
    axis: int = 0
    annotation: int = 0


@dataclass(slots=True)
class Stage:
    """A stage of the program.

    Parameters
    ----------
    loops : list of Loop
        Outermost first.
    inlined : bool
        Whether the stage is inlined and has no loops of its own.
    attached : (Stage, int) or None
        Stage and loop inside which this stage is computed.
    unroll : tuple of int
        The size that holds the maximum unroll step; empty if there is none.
    """

    loops: list[Loop] = field(default_factory=list)
    inlined: bool = False
    attached: tuple[Stage, int] | None = None
    unroll: Sizes = ()


def sizes_of(loops: Iterable[Loop]) -> Sizes:
    """Return the sizes whose product is the number of iterations of nested loops."""
    return tuple(size for loop in loops for size in loop.sizes)


def replay(primitives: Sequence[Primitive]) -> list[Stage]:
    """Return the stages after a schedule, without trailing stages that no primitive refers to.

    A primitive that does not fit the program, because it is foreign or damaged, is ignored.
    """
    state = _State()
    for place, primitive in enumerate(primitives):
        step = _STEPS.get(primitive.kind)
        if step is not None:
            step(state, place, *primitive.args)
    return state.stages


class _State:
    """The program while its schedule is replayed."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        #: Sizes of each part of a split, outermost first, by the place of the split.
        self.splits: dict[int, list[Sizes]] = {}
        self.axes = 0

    def stage(self, number: int) -> Stage | None:
        if not 0 <= number < MAX_LOOPS:
            return None
        while len(self.stages) <= number:
            self.stages.append(Stage())
        return self.stages[number]

    def loops(self, number: int, last: int) -> list[Loop] | None:
        """Return the loops of a stage, at least up to number `last`, or None if that is out of range."""
        stage = self.stage(number)
        if stage is None or not 0 <= last < MAX_LOOPS:
            return None
        while len(stage.loops) <= last:
            stage.loops.append(Loop((), axis=self.new_axis()))
        return stage.loops

    def new_axis(self) -> int:
        self.axes += 1
        return self.axes

    def insert(self, number: int) -> Stage | None:
        """Insert a stage; stages from that number on move up."""
        # `stage` may add stages, so their number is checked after it.
        if number < 0 or (number and self.stage(number - 1) is None) or len(self.stages) >= MAX_LOOPS:
            return None
        self.stages.insert(number, Stage())
        return self.stages[number]

    def replace(
        self, stage: int, loops: list[Loop], at: int, parts: Sequence[tuple[int, Sizes]], kind: Kind
    ) -> None:
        """Split a loop into parts, given outermost first with their tile levels."""
        if len(loops) + len(parts) - 1 > MAX_LOOPS:
            return
        axis = self.new_axis()
        loops[at : at + 1] = [Loop(sizes, kind, level, axis) for level, sizes in parts]
        self.move(stage, lambda loop: loop + len(parts) - 1 if loop >= at else loop)

    def move(self, stage: int, moved: Callable[[int], int]) -> None:
        """Update the stages that are computed inside a loop of this stage, after its loops have moved."""
        target = self.stages[stage]
        for other in self.stages:
            if other.attached is not None and other.attached[0] is target:
                other.attached = target, moved(other.attached[1])


def _split(
    state: _State, place: int, stage: int, loop: int, extent: int, factors: Sizes, inner_to_outer: int
) -> None:
    loops = state.loops(stage, loop)
    if loops is None:
        return
    first = place * SIZES
    parts: list[Sizes] = [(first + n,) for n in range(1 + min(len(factors), FACTORS))]
    state.splits[place] = parts
    # The remaining extent is outside of the factors, or inside of them.
    ordered = (
        list(enumerate(parts)) if inner_to_outer else [*enumerate(parts[1:]), (len(parts) - 1, parts[0])]
    )
    # Ansor tiles spatial loops at four levels on CPUs and five on GPUs, reductions at two and three.
    state.replace(stage, loops, loop, ordered, "S" if len(factors) >= 3 else "R")


def _follow_split(state: _State, place: int, stage: int, loop: int, source: int, parts: int) -> None:
    loops = state.loops(stage, loop)
    if loops is None:
        return
    followed = state.splits.get(source, [()])
    kept = followed[: max(parts, 1)]
    rest = tuple(size for part in followed[len(kept) :] for size in part)
    state.replace(stage, loops, loop, list(enumerate([*kept, rest])), "S")


def _follow_fused_split(
    state: _State, place: int, stage: int, loop: int, sources: Sizes, level: int, is_factor: int
) -> None:
    loops = state.loops(stage, loop)
    if loops is None:
        return
    followed = [state.splits[source] for source in sources if source in state.splits]
    part = tuple(s for parts in followed if 0 <= level + 1 < len(parts) for s in parts[level + 1])
    taken = set(part)
    rest = tuple(size for size in loops[loop].sizes if size not in taken)
    state.replace(stage, loops, loop, list(enumerate([rest, part] if is_factor else [part, rest])), "F")


def _reorder(state: _State, place: int, stage: int, order: Sizes) -> None:
    loops = state.loops(stage, max(order, default=-1))
    if loops is not None and sorted(order) == list(range(len(order))):
        loops[: len(order)] = [loops[n] for n in order]


def _fuse(state: _State, place: int, stage: int, fused: Sizes) -> None:
    loops = state.loops(stage, max(fused, default=-1))
    if loops is None or min(fused) < 0:
        return
    first, last = fused[0], fused[-1] + 1
    inner = loops[first:last]
    if inner:
        loops[first:last] = [Loop(sizes_of(inner), "F", min(len(inner), 9), inner[0].axis)]
        state.move(stage, lambda at: min(at, max(first, at - len(inner) + 1)))


def _annotate(state: _State, place: int, stage: int, loop: int, annotation: int) -> None:
    loops = state.loops(stage, loop)
    if loops is not None:
        loops[loop].annotation = annotation


def _pragma(state: _State, place: int, stage: int, loop: int, pragma: str) -> None:
    found = state.stage(stage)
    if found is not None and pragma.startswith("auto_unroll_max_step"):
        found.unroll = (place * SIZES + UNROLL,)


def _compute_at(state: _State, place: int, stage: int, target: int, loop: int) -> None:
    found, outer = state.stage(stage), state.stage(target)
    if found is not None and outer is not None and 0 <= loop < MAX_LOOPS:
        found.inlined, found.attached = False, (outer, loop)


def _detach(state: _State, place: int, stage: int, inlined: bool) -> None:
    found = state.stage(stage)
    if found is not None:
        found.inlined, found.attached = inlined, None


def _cache_read(state: _State, place: int, stage: int, *_: object) -> None:
    if stage >= 0:
        state.insert(stage + 1)


def _cache_write(state: _State, place: int, stage: int, *_: object) -> None:
    state.insert(stage)  # the cache stage comes first, and the original stage follows it


def _rfactor(state: _State, place: int, stage: int, loop: int, factor: int) -> None:
    """Insert a stage that computes partial results with the loop as a separate axis; this one sums them."""
    loops = state.loops(stage, loop)
    if loops is None or not 0 <= factor < len(loops):
        return
    added = state.insert(stage)
    if added is None:
        return
    others = loops[:loop] + loops[loop + 1 :]
    added.loops = [*others[:factor], loops[loop], *others[factor:]]
    # Spatial loops come before the place of the factor, and the rest of the reduction comes after it.
    loops[:] = [Loop(o.sizes, o.kind, o.level, o.axis) for o in (*others[:factor], loops[loop])]


_STEPS: dict[str, Callable[..., None]] = {
    "SP": _split,
    "FSP": _follow_split,
    "FFSP": _follow_fused_split,
    "RE": _reorder,
    "FU": _fuse,
    "AN": _annotate,
    "PR": _pragma,
    "CA": _compute_at,
    "CI": partial(_detach, inlined=True),
    "CR": partial(_detach, inlined=False),
    "CHR": _cache_read,
    "CHW": _cache_write,
    "RF": _rfactor,
}
