"""Golden rows, computed by hand from the rules of the published code, for every kind on both platform kinds.

One-hot of the kind in the vocabulary's order, then the arguments in record order, lists laid flat, strings as codes,
padded with zeros. CPU order: CI RE AN RF CHW SP CR CA FU FSP PR. GPU order: AN CHR CHW CI CA FFSP SP FU RE PR FSP.
"""

import numpy as np
import pytest

from tlp_client.dialects.ansor.primitives import ARGUMENTS
from tlp_client.errors import InvalidPrimitive
from tlp_client.primitives import read_primitive
from tlp_service.families.published.features import PUBLISHED

CPU = {
    "CI": (["CI", 4], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4]),
    "RE": (["RE", 3, [0, 4, 1, 5]], [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 4, 1, 5]),
    "AN": (["AN", 3, 21, 2], [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 21, 2]),
    "RF": (["RF", 2, 1, 3], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 3]),
    "CHW": (["CHW", 3, "local"], [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 3, 1]),
    "SP": (["SP", 2, 0, 256, [16, 4, 1], 1], [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 0, 256, 16, 4, 1, 1]),
    "CR": (["CR", 5], [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 5]),
    "CA": (["CA", 3, 5, 7], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 5, 7]),
    "FU": (["FU", 5, [0, 1, 2]], [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 5, 0, 1, 2]),
    "FSP": (["FSP", 5, 4, 2, 1], [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 5, 4, 2, 1]),
    "PR": (["PR", 3, 0, "auto_unroll_max_step$512"], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 3, 0, 3]),
}
GPU = {
    "AN": (["AN", 3, 21, 2], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 21, 2]),
    "CHR": (["CHR", 4, "shared", [5, 6]], [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 5, 6]),
    "CHW": (["CHW", 3, "local"], [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 1]),
    "CI": (["CI", 4], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 4]),
    "CA": (["CA", 3, 5, 7], [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 3, 5, 7]),
    "FFSP": (["FFSP", 6, 0, [4, 3, 2, 1], 1, 1], [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 6, 0, 4, 3, 2, 1, 1, 1]),
    "SP": (["SP", 2, 0, 64, [2, 4, 1, 8], 1], [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 2, 0, 64, 2, 4, 1, 8, 1]),
    "FU": (["FU", 5, [0, 1, 2]], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5, 0, 1, 2]),
    "RE": (["RE", 3, [0, 4, 1, 5]], [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 3, 0, 4, 1, 5]),
    "PR": (["PR", 7, 0, "auto_unroll_max_step$1024"], [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 7, 0, 4]),
    "FSP": (["FSP", 8, 4, 2, 3], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 8, 4, 2, 3]),
}


@pytest.mark.parametrize(
    ("platform_kind", "step", "row"),
    [("cpu", *golden) for golden in CPU.values()] + [("gpu", *golden) for golden in GPU.values()],
    ids=[f"cpu-{kind}" for kind in CPU] + [f"gpu-{kind}" for kind in GPU],
)
def test_the_row_of_every_kind(platform_kind, step, row):
    features = PUBLISHED[platform_kind]
    assert features.row(read_primitive(step)) == row + [0] * (features.width - len(row))


def test_the_published_shapes():
    assert [(PUBLISHED[k].steps, PUBLISHED[k].width) for k in ("cpu", "gpu")] == [(25, 22), (40, 20)]


def test_every_kind_has_a_golden_row_or_is_unknown_to_the_vocabulary():
    for platform_kind, golden in (("cpu", CPU), ("gpu", GPU)):
        assert set(PUBLISHED[platform_kind].kinds) == set(golden)
        for kind in set(ARGUMENTS) - set(golden):
            step = {
                "CHR": ["CHR", 4, "shared", [5]],
                "FFSP": ["FFSP", 6, 0, [4], 1, 1],
                "SA": ["SA", 2, 1, 32, 4],
            }
            step |= {"RF": ["RF", 2, 1, 3], "CR": ["CR", 5]}
            with pytest.raises(
                InvalidPrimitive, match=f"{platform_kind} vocabulary has no primitive kind '{kind}'"
            ):
                PUBLISHED[platform_kind].row(read_primitive(step[kind]))


@pytest.mark.parametrize(
    ("platform_kind", "codes"),
    [("cpu", {16: 1, 0: 2, 512: 3, 64: 4}), ("gpu", {0: 1, 16: 2, 64: 3, 1024: 4, 512: 5})],
)
def test_the_unroll_codes(platform_kind, codes):
    for value, code in codes.items():
        row = PUBLISHED[platform_kind].row(read_primitive(["PR", 1, 2, f"auto_unroll_max_step${value}"]))
        assert row[11:14] == [1, 2, code]


@pytest.mark.parametrize(("scope", "code"), [("local", 1), ("shared", 2), ("global", 3)])
def test_the_scope_codes_of_cache_write(scope, code):
    for features in PUBLISHED.values():
        assert features.row(read_primitive(["CHW", 9, scope]))[11:13] == [9, code]


@pytest.mark.parametrize(
    ("platform_kind", "step"),
    [
        ("cpu", ["PR", 1, 0, "auto_unroll_max_step$1024"]),
        ("gpu", ["PR", 1, 0, "auto_unroll_max_step$128"]),
        ("gpu", ["PR", 1, 0, "auto_unroll_max_step$"]),
        ("gpu", ["PR", 1, 0, "debug_skip_region"]),
        ("cpu", ["CHW", 1, "wmma.accumulator"]),
        ("gpu", ["CHR", 1, "local", [2]]),
    ],
)
def test_a_text_without_a_code_is_an_error_and_never_another_texts_code(platform_kind, step):
    with pytest.raises(InvalidPrimitive, match=f"has no code for {step[0]}"):
        PUBLISHED[platform_kind].row(read_primitive(step))


def test_a_row_is_cropped_to_its_width():
    order = list(range(30))
    assert PUBLISHED["cpu"].row(read_primitive(["RE", 3, order]))[11:] == [3, *order[:10]]
    assert PUBLISHED["gpu"].row(read_primitive(["RE", 3, order]))[11:] == [3, *order[:8]]


def test_row_0_of_a_table_is_the_padding_and_a_broken_primitive_keeps_its_place():
    steps = [read_primitive(["CI", 4]), read_primitive(["SA", 2, 1, 32, 4]), read_primitive(["CR", 5])]
    rows, errors = PUBLISHED["cpu"].rows(steps)
    assert rows.shape == (4, 22)
    assert rows.dtype == np.float32
    assert not rows[0].any()
    assert not rows[2].any()
    assert rows[3].tolist() == PUBLISHED["cpu"].row(steps[2])
    assert list(errors) == [1]


def test_positions_crop_long_candidates_and_pad_short_ones():
    features = PUBLISHED["cpu"]
    indices = np.array([2, 0, *range(30)])
    positions = features.positions(indices, np.array([2, 0, 30]))
    assert positions.shape == (3, 25)
    assert positions[0].tolist() == [3, 1, *[0] * 23]
    assert positions[1].tolist() == [0] * 25
    assert positions[2].tolist() == list(range(1, 26))
