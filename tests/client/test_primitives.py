import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlp_client.errors import InvalidPrimitive
from tlp_client.primitives import ARGUMENTS, Primitive, read_primitive

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


@given(JSON)
def test_any_json_is_a_primitive_or_a_clear_refusal(step):
    try:
        primitive = read_primitive(step)
    except InvalidPrimitive:
        return
    assert primitive.to_json() == step
