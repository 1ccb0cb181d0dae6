import json

import pytest

from tlp_client.dialects.ansor.tasks import read_task
from tlp_client.errors import InvalidRecord
from tlp_client.tasks import Task, canonical_workload_key, platform_kind, target_names

HARDWARE = [8, 64, 64, 0, 0, 0, 0, 0]
FULL = ['["w", 1]', "llvm -keys=cpu", HARDWARE, "llvm", 2, ["a"]]


@pytest.mark.parametrize("length", [2, 3, 4, 5, 6])
def test_a_task_array_of_every_log_version_is_read_and_written_back(length):
    assert read_task(FULL[:length]).to_json() == FULL[:length]


def test_the_fields_of_a_task():
    assert read_task(FULL) == Task('["w", 1]', "llvm -keys=cpu", tuple(HARDWARE), "llvm", 2, ("a",))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (FULL[:1], "2 to 6 elements"),
        ([*FULL, 1], "2 to 6 elements"),
        ("llvm", "2 to 6 elements"),
        ([7, *FULL[1:]], r"task\[0\]"),
        (["", *FULL[1:]], r"task\[0\]"),
        ([FULL[0], None, HARDWARE], r"task\[1\]"),
        ([*FULL[:2], HARDWARE[:7]], r"task\[2\]"),
        ([*FULL[:2], [*HARDWARE[:7], 1.5]], r"task\[2\]"),
        ([*FULL[:3], 5], r"task\[3\]"),
        ([*FULL[:4], "2"], r"task\[4\]"),
        ([*FULL[:5], [1]], r"task\[5\]"),
        ([*FULL[:2], None], "null"),
    ],
)
def test_a_task_that_breaks_the_form_is_refused_by_the_element(array, message):
    with pytest.raises(InvalidRecord, match=message):
        read_task(array)


@pytest.mark.parametrize(
    "spellings",
    [
        ['["ac8f944505f7"]', '[ "ac8f944505f7" ]', '["ac8f944505f7"]\n'],
        [
            '["0ac8", [1, 56, 56, 64], [3, 3]]',
            '["0ac8",[1,56,56,64],[3,3]]',
            '["0ac8",  [1,56, 56,64], [3, 3] ]',
        ],
        ['["conv2d_layer", 1, 7, 7, 512]', '["conv2d_layer",1,7,7,512]'],
    ],
)
def test_a_workload_key_of_each_form_groups_whatever_its_blanks(spellings):
    assert len({canonical_workload_key(key) for key in spellings}) == 1


def test_different_workloads_stay_apart():
    keys = ['["a"]', '["a", [1]]', '["a", 1]', '["a", [1, 2]]', '["b"]', "a", "[a", '{"a": 1}']
    assert len({canonical_workload_key(key) for key in keys}) == len(keys)


def test_a_key_nested_beyond_reason_is_its_own_spelling():
    key = "[" * 100_000
    assert canonical_workload_key(key) == key


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("llvm", "cpu"),
        ("llvm -keys=cpu -link-params=0 -mcpu=core-avx2", "cpu"),
        ("llvm -keys=arm_cpu,cpu -device=arm_cpu", "cpu"),
        ("cuda -keys=cuda,gpu -arch=sm_86 -max_num_threads=1024", "gpu"),
        ("opencl -keys=mali,opencl,gpu -device=mali", "gpu"),
        ("vulkan", "gpu"),
        (json.dumps({"kind": "cuda", "arch": "sm_80"}), "gpu"),
        (json.dumps({"kind": "llvm", "mcpu": "x"}), "cpu"),
        ("newkind -keys=newkind,gpu", "gpu"),
        ("hexagon", None),
        ("", None),
        ("{not json", None),
        ("[1]", None),
    ],
)
def test_the_kind_of_hardware_that_a_target_tells(target, kind):
    assert platform_kind(target) == kind


def test_the_devices_that_a_target_names():
    assert target_names("llvm -keys=cpu -mcpu=icelake-server -model=platinum-8358") == (
        "platinum-8358",
        "icelake-server",
    )
    assert target_names('{"kind": "cuda", "arch": "sm_80"}') == ("sm_80",)
    assert target_names("cuda -keys=cuda,gpu") == ()
