"""What loops unroll, hold and load, worked out by hand for a matrix product."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from test_loopnest import nests_of

from tlp_client.primitives import read_primitive
from tlp_service.families.loopnest import features, reuse

LOG65 = math.log2(65)
#: C[m, n] += A[m, k] B[k, n]: m 64 = 1 x 4 x 2 x 8, n 128 = 1 x 2 x 4 x 16, k 32 = 4 x 8; from the outside m, n, k, m,
#: n, k, m, n.
TILED = (
    ["SP", 0, 0, 64, [4, 2, 8], 1],
    ["SP", 0, 4, 128, [2, 4, 16], 1],
    ["SP", 0, 8, 32, [8], 1],
    ["RE", 0, [0, 4, 1, 5, 8, 2, 6, 9, 3, 7]],
    ["FU", 0, [0, 1, 2, 3]],
    ["AN", 0, 0, 3],
)
VECTORIZED = ["AN", 0, 6, 2]
TILES, UNROLLED, TRAFFIC = (
    slice(0, reuse._TILES),
    slice(-reuse.STAGES * reuse._UNROLLED, -(reuse.STAGES - 1) * reuse._UNROLLED),
    slice(reuse._TILES, -reuse.STAGES * reuse._UNROLLED),
)


def numbers_of(*steps):
    """Return the numbers of a candidate, to two digits behind the point."""
    (nest,) = nests_of([read_primitive(step) for step in steps])
    return nest[-reuse.WIDTH :].astype(np.float64) * features._SCALE


def unroll(step):
    return ["PR", 0, 0, f"auto_unroll_max_step${step}"]


def test_tiles_from_each_level_inwards():
    found = numbers_of(*TILED, unroll(64), VECTORIZED)[TILES]
    last, other, reduction = [7, 7, 6, 4], [6, 6, 4, 3], [5, 3]
    both = np.add(last, other)
    bodies = [LOG65 + 4 - both[3], LOG65 + 4 - both[3] - 3, LOG65 + 4 - both[2] - 3]
    np.testing.assert_allclose(found, [*last, *other, *both, *reduction, *bodies, 1], atol=0.01)


@pytest.mark.parametrize(
    ("step", "last", "other", "reduction", "count", "ending", "of"),
    [
        (0, 0, 0, 0, 0, 3, 1),
        (7, 0, 0, 0, 0, 3, 1),
        (8, 0, 3, 0, 1, 3, 2),
        (64, 0, 3, 3, 2, 2, 0),
        (512, 2, 4, 3, 4, 2, 2),
        (100_000, 2, 4, 5, 5, 0, None),
    ],
)
def test_loops_are_unrolled_while_their_product_is_within_the_step(
    step, last, other, reduction, count, ending, of
):
    """Inside out: n 16, vectorized; m 8, k 8, n 4, m 2, k 4; then a parallel loop. A step of 512 is used up exactly."""
    found = numbers_of(*TILED, unroll(step), VECTORIZED)[UNROLLED]
    weights, inputs, output = last + reduction, other + reduction, last + other
    operands = sum(2.0**operand for operand in (weights, inputs))
    body, per_load = last + other + reduction, last + other + reduction - math.log2(operands)
    runs = [last, other, reduction, body, *(ending * (of == role) for role in range(3)), count]
    touched = [weights, inputs, output, per_load, math.log2(operands + 2.0**output), 4, 4 + output]
    np.testing.assert_allclose(found, [*runs, *touched], atol=0.01)


def test_a_loop_behind_one_that_is_not_unrolled_is_not_either():
    """The reduction of 8 is too much for a step of 6, so the spatial 2 around it stays, too, small as it is."""
    steps = (["SP", 0, 0, 2, [1, 1, 2], 1], ["SP", 0, 4, 8, [8], 1])
    found = numbers_of(*steps, unroll(6))[UNROLLED]
    assert found[:3].tolist() == [0, 0, 0]
    assert found[6] == 3


def test_a_parallel_loop_and_one_of_unknown_extent_end_what_is_unrolled():
    splits = (["SP", 0, 0, 64, [4, 2, 8], 1], ["SP", 0, 4, 32, [8], 1])  # m 1, 4, 2, 8, k 4, 8
    assert numbers_of(*splits, unroll(512))[UNROLLED][:7].tolist() == [4, 0, 5, 9, 2, 0, 0]
    parallel = numbers_of(*splits, ["AN", 0, 4, 3], unroll(512))[UNROLLED]
    assert parallel[:8].tolist() == [0, 0, 3, 3, 0, 0, 0, 1]
    unknown = numbers_of(*splits, ["RE", 0, [0, 1, 2, 3, 4, 6, 5]], unroll(512))[UNROLLED]
    assert unknown[:8].tolist() == [0, 0, 3, 3, 0, 0, 0, 1]


def test_each_stage_has_its_own_loops_and_step():
    first = (*TILED, unroll(8), VECTORIZED)
    second = (["SP", 1, 0, 8, [4], 1], ["PR", 1, 0, "auto_unroll_max_step$512"])
    both = numbers_of(*first, *second)
    np.testing.assert_array_equal(both[: TRAFFIC.stop], numbers_of(*first)[: TRAFFIC.stop])
    of_second = both[TRAFFIC.stop + reuse._UNROLLED :][: reuse._UNROLLED]
    assert of_second[:8].tolist() == [0, 0, 3, 3, 0, 0, 0, 2]
    assert both[UNROLLED][:4].tolist() == [0, 3, 0, 3]


def test_of_more_parts_than_are_looked_at_the_innermost_count():
    # 36 parts; of the last axis the innermost one is of 2, of the others of 1.
    splits = [["SP", 0, 4 * n, 8, [1, 2, 1 + n // 8], 1] for n in range(9)]
    found = numbers_of(*splits)[TILES]
    assert found[3] == 1


def simulated_loads(memory):
    """Return the loads per iteration by the rule of `reuse`, from loops instead of logarithms.

    They are those of weights, input and output.
    """
    loops = [("n", 16), ("m", 8), ("k", 8), ("n", 4), ("m", 2), ("k", 4), ("n", 2), ("m", 4)]
    total = math.prod(extent for _, extent in loops)

    def elements(axes, inner):
        return math.prod(extent for axis, extent in inner if axis in axes)

    operands = ("nk", "mk", "mn")
    bodies = (loops[:n] for n in range(1, len(loops) + 1))
    fitting = sum(sum(elements(axes, body) for axes in operands) <= memory for body in bodies)
    loads = []
    for axes in operands:
        around = itertools.dropwhile(lambda loop, axes=axes: loop[0] not in axes, loops[fitting:])
        runs = math.prod(extent for _, extent in around)
        loads.append(elements(axes, loops[:fitting]) * runs / total)
    return loads, math.prod(extent for _, extent in loops[:fitting])


def test_traffic_is_what_loops_around_a_body_that_fits_load_again():
    found = numbers_of(*TILED, VECTORIZED)[TRAFFIC].reshape(-1, reuse._TRAFFIC)
    assert simulated_loads(2**7) == ([1 / 8, 1 / 16, 1], 16)  # weights stay over m, all else changes in it
    for memory, numbers in zip(reuse._MEMORIES, found, strict=True):
        loads, body = simulated_loads(2**memory)
        np.testing.assert_allclose(2**numbers, [*loads, sum(loads), body], rtol=0.02)


def test_vectors_of_which_a_register_is_not_full():
    for extent, filled in ((12, 0.75), (2, 0.25), *((8 * n, 1) for n in range(1, 65))):
        split = ["SP", 0, 0, extent, [1, 1, extent], 1]
        found = numbers_of(split, ["AN", 0, 3, 2])[TILES]
        assert found[-1] == pytest.approx(filled, abs=0.01)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    arrays(np.int8, (5, reuse.STAGES, reuse.PARTS), elements=st.integers(0, 79)),
    arrays(np.float32, (5, reuse.STAGES, reuse.PARTS), elements=st.floats(0, 30, width=32)),
    arrays(np.float32, (5, reuse.STAGES), elements=st.floats(0, 12, width=32)),
)
def test_numbers_are_the_same_alone_and_among_others(codes, parts, steps):
    """To the last bit of single precision: rounded to half it would show too seldom."""
    parts = np.where(codes & 3 == 3, 0, parts)
    together = reuse.numbers_of(parts, codes, steps)
    assert together.shape == (5, reuse.WIDTH)
    assert together.dtype == np.float32
    for n in range(5):
        alone = reuse.numbers_of(parts[n : n + 1], codes[n : n + 1], steps[n : n + 1])
        np.testing.assert_array_equal(alone[0], together[n])


def test_a_footprint_as_large_as_a_memory_fits():
    """128 elements: 8 x 8 weights, 4 x 8 of the input, 4 x 8 of the output; a loop of 2 around it is too much."""
    splits = (["SP", 0, 0, 8, [1, 2, 4], 1], ["SP", 0, 4, 8, [1, 1, 8], 1], ["SP", 0, 8, 8, [8], 1])
    found = numbers_of(*splits, ["RE", 0, [0, 4, 1, 5, 2, 6, 8, 3, 7, 9]])[TRAFFIC]
    assert found[reuse._TRAFFIC - 1] == 8


@pytest.mark.parametrize("annotation", [4, 5, 6])
def test_of_loops_bound_to_threads_nothing_is_told(annotation):
    nothing = numbers_of(["CI", 0])
    bound = numbers_of(*TILED[:-1], ["AN", 0, 0, annotation], unroll(64), VECTORIZED)
    np.testing.assert_array_equal(bound, nothing)
    assert (numbers_of(*TILED, unroll(64)) != nothing).any()
