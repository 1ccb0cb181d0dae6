"""Nests worked out by hand from the rules of TVM's transform steps."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tlp_client.dialects.ansor.primitives import ARGUMENTS, INT, INTS
from tlp_client.primitives import Primitive, read_primitive
from tlp_service.families.loopnest import loop_nest
from tlp_service.families.loopnest.loop_nest import SIZES, UNROLL, replay


def nest(*steps):
    return replay([read_primitive(list(step)) for step in steps])


def loops_of(stage):
    """Return (kind, level, annotation, sizes as (primitive, number)) of each loop."""
    return [(o.kind, o.level, o.annotation, [divmod(s, SIZES) for s in o.sizes]) for o in stage.loops]


def test_a_tiled_matmul():
    _, _, main = nest(
        ("SP", 2, 0, 64, [4, 2, 8], 1),
        ("SP", 2, 4, 32, [8], 1),
        ("RE", 2, [0, 1, 4, 2, 5, 3]),
        ("FU", 2, [0, 1]),
        ("AN", 2, 0, 3),
        ("PR", 2, 0, "auto_unroll_max_step$512"),
        ("AN", 2, 4, 2),
    )
    assert loops_of(main) == [
        ("F", 2, 3, [(0, 0), (0, 1)]),
        ("R", 0, 0, [(1, 0)]),
        ("S", 2, 0, [(0, 2)]),
        ("R", 1, 0, [(1, 1)]),
        ("S", 3, 2, [(0, 3)]),
    ]
    assert main.unroll == (5 * SIZES + UNROLL,)


def test_a_followed_split_takes_the_first_parts_and_the_product_of_the_rest():
    """``FollowSplitStep::ExtractSplitLengths``.

    Two factors of a split in three, the second one the product of the last two.
    """
    stages = nest(("SP", 0, 0, 64, [4, 2, 8], 1), ("FSP", 1, 0, 0, 2))
    assert loops_of(stages[1]) == [
        ("S", 0, 0, [(0, 0)]),
        ("S", 1, 0, [(0, 1)]),
        ("S", 2, 0, [(0, 2), (0, 3)]),
    ]


@pytest.mark.parametrize(
    ("is_factor", "expected"), [(1, [[], [(0, 2), (1, 2)]]), (0, [[(0, 2), (1, 2)], []])]
)
def test_a_followed_fused_split_takes_a_level_of_each_source(is_factor, expected):
    splits = [("SP", 0, n, 64, [4, 2, 8, 1], 1) for n in (0, 5)]
    stages = nest(*splits, ("FFSP", 1, 0, [0, 1], 1, is_factor))
    assert [sizes for *_, sizes in loops_of(stages[1])] == expected


def test_computed_at_inlined_and_at_the_root_again():
    first, second, third = nest(
        ("SP", 2, 0, 8, [2], 1), ("CA", 0, 2, 1), ("CI", 1), ("CA", 1, 2, 0), ("CI", 1), ("CI", 0), ("CR", 0)
    )
    assert (first.inlined, first.attached) == (False, None)
    assert (second.inlined, second.attached) == (True, None)
    assert third.loops


def test_stages_that_are_added_move_the_others_up():
    """A cache write comes before its stage, a cache read behind it.

    What was attached stays attached to the same stage.
    """
    stages = nest(("SP", 1, 0, 8, [2], 1), ("CA", 0, 1, 0), ("CHW", 1, "local"), ("SP", 1, 0, 8, [4], 1))
    assert [len(stage.loops) for stage in stages] == [0, 2, 2]
    assert stages[0].attached == (stages[2], 0)
    stages = nest(("SP", 0, 0, 8, [2], 1), ("CHR", 0, "shared", [3]), ("SP", 1, 0, 8, [4], 1))
    assert [loops_of(stage)[0][3] for stage in stages] == [[(0, 0)], [(2, 0)]]


def test_what_is_computed_at_a_loop_stays_there_when_loops_before_it_are_fused_or_split():
    """``AttachMap::UpdateIters``: Ansor attaches in the sketch, and fuses for parallel later."""
    splits = [("SP", 1, n, 8, [2], 1) for n in (0, 2)]  # four loops
    for steps, at in [
        ([("CA", 0, 1, 3), ("FU", 1, [0, 1, 2])], 1),
        ([("CA", 0, 1, 2), ("FU", 1, [0, 1, 2, 3])], 0),
        ([("CA", 0, 1, 0), ("FU", 1, [1, 2])], 0),
        ([("CA", 0, 1, 1), ("SP", 1, 0, 4, [2, 2], 1)], 3),
        ([("CA", 0, 1, 1), ("SP", 1, 2, 4, [2, 2], 1)], 1),
        ([("CA", 0, 1, 3), ("RE", 1, [3, 2, 1, 0])], 3),
    ]:
        stages = nest(*splits, *steps)
        assert stages[0].attached == (stages[1], at)


def test_a_factored_reduction():
    """TVM's example ``SP 2 2 4096 [8]; RF 2 2 2``: the parts are computed for each i, j, k_o, and added up over k_o."""
    *_, parts, total = nest(
        ("SP", 2, 2, 4096, [8], 1), ("RF", 2, 2, 2), ("FU", 2, [0, 1, 2]), ("AN", 2, 0, 3)
    )
    assert loops_of(parts) == [("F", 3, 3, [(0, 0)]), ("R", 1, 0, [(0, 1)])]
    assert [kind for kind, *_ in loops_of(total)] == ["?", "?", "R"]
    assert loops_of(total)[2] == ("R", 0, 0, [(0, 0)])


def test_a_split_from_the_outside_leaves_the_rest_inside():
    (stage,) = nest(("SP", 0, 0, 64, [4, 2], 0))
    assert [sizes for *_, sizes in loops_of(stage)] == [[(0, 1)], [(0, 2)], [(0, 0)]]


def test_a_program_has_no_end_of_loops_and_stages():
    (stage,) = nest(*[("SP", 0, 0, 8, [2], 1)] * 100)
    assert len(stage.loops) == 64
    assert len(nest(*[("CHW", 0, "local")] * 100)) == 64
    assert nest(("CHR", -1, "shared", [])) == []


@pytest.mark.parametrize(
    "step",
    [
        ("RE", 0, [0, 0]), ("RE", 0, [5, 1]), ("FU", 0, []), ("FU", 0, [-1]), ("FU", 0, [1, 0]), ("AN", -1, 0, 2),
        ("AN", 0, 999, 2),
        ("SP", 999999, 0, 8, [2], 1), ("FSP", 0, -1, 0, 2), ("FFSP", 0, 70, [0], 1, 1), ("CA", -3, 0, 0),
        ("PR", 0, 0, "other"),
        ("SA", 0, 0, 4, 4),
    ],
)  # fmt: skip
def test_what_does_not_fit_changes_no_loop(step):
    split = ("SP", 0, 0, 64, [4], 1)
    before, after = (loops_of(nest(*steps)[0]) for steps in ([split], [split, step]))
    assert after[: len(before)] == before
    assert all(loop == ("?", 0, 0, []) for loop in after[len(before) :])  # named by the step, and unknown


INTEGERS = st.one_of(st.integers(-2, 12), st.integers(-(2**31), 2**31 - 1))
VALUES = {INT: INTEGERS, INTS: st.lists(INTEGERS, max_size=8).map(tuple)}


@st.composite
def any_primitive(draw):
    kind = draw(st.sampled_from(sorted(ARGUMENTS)))
    texts = st.sampled_from(["local", "auto_unroll_max_step$16", "auto_unroll_max_step$x", ""])
    return Primitive(kind, tuple(draw(VALUES.get(type_, texts)) for _, type_ in ARGUMENTS[kind]))


@given(st.lists(any_primitive(), max_size=30))
@example([Primitive("AN", (0, 0, 0)), Primitive("CHR", (63, "local", ()))])
def test_any_schedule_is_replayed(primitives):
    stages = replay(primitives)
    assert len(stages) <= 64
    for stage in stages:
        assert all(0 <= size < len(primitives) * SIZES for loop in stage.loops for size in loop.sizes)


class Counted(int):
    """A size that counts its comparisons."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other):
        Counted.compared += 1
        return int(self) == int(other)


def test_a_fused_split_looks_at_each_size_once():
    """A loop of thousands of sizes was compared with each size of a source: the work grew with the product."""
    Counted.compared = 0
    state = loop_nest._State()
    state.splits = {n: [(Counted(n),), (Counted(1000 + n),)] for n in range(500)}
    state.stage(0).loops = [loop_nest.Loop(tuple(Counted(500 + n) for n in range(1000)))]
    loop_nest._follow_fused_split(state, 600, 0, 0, tuple(range(500)), 0, 1)
    rest, part = state.stages[0].loops
    assert (len(rest.sizes), len(part.sizes)) == (500, 500)
    assert Counted.compared <= 2000
