import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlp_client.dialects.ansor.primitives import (
    ARGUMENTS,
    MAX_ENTRIES,
    MAX_LENGTHS,
    MAX_SOURCES,
    MAX_TEXT,
    sizes_of,
)
from tlp_client.errors import InvalidPrimitive
from tlp_client.primitives import MAX_SIZES, MAX_STEPS, Primitive, check_candidate, read_primitive

ONE_OF_EACH = [
    ["AN", 3, 21, 2],
    ["FU", 5, [0, 1, 2, 3]],
    ["PR", 3, 0, "auto_unroll_max_step$512"],
    ["RE", 3, [0, 4, 1, 5]],
    ["SP", 2, 0, 256, [16, 4, 1], 1],
    ["FSP", 5, 0, 0, 1],
    ["FFSP", 6, 0, [4, 3, 2, 1], 1, 1],
    ["SA", 2, 1, 32, 4],
    ["CA", 3, 5, 3],
    ["CI", 4],
    ["CR", 4],
    ["CHR", 4, "shared", [5]],
    ["CHW", 3, "local"],
    ["RF", 2, 1, 1],
]


def test_the_fourteen_kinds_are_those_of_ansor():
    assert [step[0] for step in ONE_OF_EACH] == list(ARGUMENTS)


@pytest.mark.parametrize("step", ONE_OF_EACH, ids=lambda step: step[0])
def test_each_kind_is_read_and_written_back(step):
    assert read_primitive(step).to_json() == step


def test_a_primitive_is_hashable_and_holds_its_arguments_in_record_order():
    assert read_primitive(["SP", 2, 0, 256, [16, 4, 1], 1]) == Primitive("SP", (2, 0, 256, (16, 4, 1), 1))
    assert len({read_primitive(["RE", 1, [0, 1]]), read_primitive(["RE", 1, [0, 1]])}) == 1


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (["PPT", 2, 0], "unknown primitive kind 'PPT'"),
        (["XX"], "unknown primitive kind 'XX'"),
        ([], r"a primitive is a list \[kind, arguments…\], not \[\]"),
        ("SP", "a primitive is a list"),
        ([7, 1], "a primitive begins with its kind, not with 7"),
        (None, "a primitive is a list"),
        ({"kind": "CI"}, "a primitive is a list"),
        (["CI"], "CI takes 1 arguments, not 0"),
        (["CI", 1, 2], "CI takes 1 arguments, not 2"),
        (["CI", True], "'stage' of CI is an integer in 32 bits, not True"),
        (["CI", 1.0], "'stage' of CI is an integer in 32 bits, not 1.0"),
        (["CI", 2**31], "'stage' of CI is an integer in 32 bits, not 2147483648"),
        (["FU", 1, [0, "1"]], "'fused iterators' of FU is a list of integers"),
        (["FU", 1, 2], "'fused iterators' of FU is a list of integers"),
        (["PR", 1, 0, 512], "'pragma' of PR is a string"),
        (["SP", 2, 0, None, [1], 1], "'extent' of SP is an integer in 32 bits, not None"),
    ],
)
def test_what_is_no_primitive_is_refused_with_its_reason(step, message):
    with pytest.raises(InvalidPrimitive, match=message):
        read_primitive(step)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(list(ARGUMENTS)),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.slow
@given(JSON)
def test_any_json_is_a_primitive_or_a_clear_refusal(step):
    try:
        primitive = read_primitive(step)
    except InvalidPrimitive:
        return
    assert primitive.to_json() == step


@pytest.mark.parametrize(
    ("limit", "make", "what"),
    [
        (MAX_LENGTHS, lambda n: ["SP", 0, 0, 64, [1] * n, 1], "'lengths' of SP: expected at most 16 entries, got 17"),
        (MAX_SOURCES, lambda n: ["FFSP", 0, 0, [1] * n, 1, 1],
            "'source steps' of FFSP: expected at most 16 entries, got 17"),
        (MAX_ENTRIES, lambda n: ["RE", 0, list(range(n))], "'order' of RE: expected at most 256 entries, got 257"),
        (MAX_ENTRIES, lambda n: ["FU", 0, [0] * n], "'fused iterators' of FU: expected at most 256 entries, got 257"),
        (MAX_ENTRIES, lambda n: ["CHR", 0, "shared", [0] * n],
            "'reader stages' of CHR: expected at most 256 entries, got 257"),
        (MAX_TEXT, lambda n: ["PR", 0, 0, "x" * n], "'pragma' of PR: expected at most 256 characters, got 257"),
        (MAX_TEXT, lambda n: ["CHW", 0, "x" * n], "'scope' of CHW: expected at most 256 characters, got 257"),
    ],
)  # fmt: skip
def test_what_a_primitive_may_hold_ends_exactly_at_its_bound(limit, make, what):
    assert read_primitive(make(limit)).to_json() == make(limit)
    with pytest.raises(InvalidPrimitive) as refused:
        read_primitive(make(limit + 1))
    assert what in str(refused.value)


def test_a_candidate_may_have_so_many_primitives():
    step = read_primitive(["CI", 4])
    check_candidate([step] * MAX_STEPS)
    with pytest.raises(InvalidPrimitive, match="513 primitives are more than the 512"):
        check_candidate([step] * (MAX_STEPS + 1))


def test_a_candidate_may_have_so_many_sizes():
    """A split of three lengths has four sizes, a follow split five, and a fused follow split one per source."""
    split, follower, fused = map(
        read_primitive, (["SP", 0, 0, 64, [4, 2, 8], 1], ["FSP", 1, 0, 0, 2], ["FFSP", 1, 0, [0] * 16, 1, 1])
    )
    assert list(map(sizes_of, (split, follower, fused))) == [4, 5, 16]
    check_candidate([fused] * (MAX_SIZES // 16))
    with pytest.raises(InvalidPrimitive, match="1028 sizes, which are more than the 1024"):
        check_candidate([fused] * (MAX_SIZES // 16) + [split])
