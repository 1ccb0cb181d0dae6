"""The replayed loop nest beside TVM's own: the same loops, extents and annotations."""

import json

import pytest
from operators import OPERATORS
from tvm import auto_scheduler

from tlp_client.primitives import read_primitive
from tlp_client.states import serialize_states
from tlp_service.families.loopnest.loop_nest import FACTORS, SIZES, replay

CPU, CUDA = "llvm -mcpu=core-avx2 -num-cores 2", "cuda -arch=sm_80"
# ComputeAtKind of TVM; 0 is the root
INLINED, AT_A_LOOP = 1, 2


def task_of(name, target, hardware=None):
    function, arguments = OPERATORS[name]
    return auto_scheduler.SearchTask(func=function, args=arguments, target=target, hardware_params=hardware)


def sampled(task):
    """Return (primitives, TVM's state) of some states that Ansor samples."""
    policy = auto_scheduler.SketchPolicy(task, verbose=0, params={"sample_init_min_population": 64}, seed=3)
    states = policy.sample_initial_population()
    for line, state in zip(serialize_states(task, states), states, strict=True):
        steps = [read_primitive(step) for step in json.loads(line)["i"][1][1]]
        yield steps, state


def extent_of(loop, steps):
    """Return the iterations of a loop, or None where the record doesn't state them."""
    if not loop.sizes:
        return None
    product = 1
    for size in loop.sizes:
        primitive, number = divmod(size, SIZES)
        _, _, extent, factors, _ = steps[primitive].args
        inside = 1
        for factor in factors:
            inside *= factor
        assert number <= FACTORS
        product *= factors[number - 1] if number else -(-extent // inside)
    return product


@pytest.mark.parametrize("target", [CPU, CUDA])
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_replayed_nests_are_those_of_tvm(name, target, cuda_hardware):
    stages_seen = loops_seen = attached_seen = 0
    for steps, state in sampled(task_of(name, target, cuda_hardware if target == CUDA else None)):
        theirs = state.stages
        ours = replay(steps)
        assert len(ours) <= len(theirs)
        for mine, stage in zip(ours, theirs, strict=False):
            if int(stage.compute_at) == INLINED:
                assert mine.inlined
                continue
            stages_seen += 1
            # Loops that no primitive names are not known; a named stage has all that stand before the last named.
            for loop, iterator in zip(mine.loops, stage.iters, strict=False):
                assert loop.annotation == int(iterator.annotation)
                expected = extent_of(loop, steps)
                if loop.kind != "F" and expected is not None and iterator.range is not None:
                    loops_seen += 1
                    extent = int(iterator.range.extent)
                    # Bounds are inferred: what is computed at a loop runs the loops outside of that once.
                    assert extent == expected or (extent == 1 and int(stage.compute_at) == AT_A_LOOP)
            assert len(mine.loops) <= len(stage.iters)
            # Python sees that a stage is computed at a loop, not at which.
            assert (mine.attached is not None) == (int(stage.compute_at) == AT_A_LOOP)
            if mine.attached is not None:
                attached_seen += 1
                target, at = mine.attached
                assert at < len(theirs[next(n for n, s in enumerate(ours) if s is target)].iters)
    assert stages_seen > 100
    assert loops_seen > 100
    assert attached_seen > 0 or "softmax" in name
