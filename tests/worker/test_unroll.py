"""What `reuse` says is unrolled beside what TVM unrolls."""

import math
from itertools import islice

import numpy as np
import pytest
import tvm
from test_replay import CPU, sampled, task_of
from tvm import tir

from tlp_service.families.loopnest import features, reuse

#: Kinds of ``tir.For``.
UNROLLED = 3
#: Which of `reuse.numbers_of` is the logarithm of what the unrolled loops of the first stage run over.
BODY = -reuse.STAGES * reuse._UNROLLED + 3


@tir.transform.prim_func_pass(opt_level=0)
def marking(function, module, context):
    """Let the pass mark the loops that it would copy."""

    def marked(node):
        if node.attr_key == "pragma_unroll_explicit":
            return tir.AttrStmt(node.node, node.attr_key, tir.IntImm("int32", 0), node.body)
        return None

    return function.with_body(tir.stmt_functor.ir_transform(function.body, None, marked, ["tir.AttrStmt"]))


def unrolled_by_tvm(dag, state):
    """Return the iterations of the unrolled loops around the update of a reduction, at most over the updates."""
    schedule, arguments = dag.apply_steps_from_state(state)
    with tvm.transform.PassContext(config={"tir.add_lower_pass": [(1, marking)]}):
        body = tvm.lower(schedule, arguments)["main"].body
    found = []

    def walk(node, around):
        if isinstance(node, tir.For):
            walk(node.body, [*around, node])
        elif isinstance(node, tir.SeqStmt):
            for part in node.seq:
                walk(part, around)
        elif isinstance(node, tir.IfThenElse):
            walk(node.then_case, around)
        elif isinstance(node, tir.BufferStore):
            if isinstance(node.value, tir.Add):
                found.append(math.prod(int(loop.extent) for loop in around if int(loop.kind) == UNROLLED))
        elif hasattr(node, "body"):
            walk(node.body, around)

    walk(body, [])
    return max(found, default=0)


def said(steps):
    distinct = list(dict.fromkeys(steps))
    indices = np.array([distinct.index(step) for step in steps])
    (nest,) = features.nests(distinct, indices, np.array([len(steps)]))
    return round(2 ** (float(nest[BODY]) * features._SCALE))


@pytest.mark.parametrize("name", ["matmul 256x256x256 + relu", "conv2d 3x3 NHWC 28x28x64, 64 + bias + relu"])
def test_what_is_said_to_be_unrolled_is_what_tvm_unrolls(name):
    """But for a few, where what sets the accumulator to zero, or a stage that is computed inside, uses the step up."""
    task = task_of(name, CPU)
    pairs = [
        (said(steps), unrolled_by_tvm(task.compute_dag, state)) for steps, state in islice(sampled(task), 64)
    ]
    assert len({theirs for _, theirs in pairs}) >= 8
    assert np.mean([ours == theirs for ours, theirs in pairs]) > 0.9
