import json

import numpy as np
import pytest

from tlp_client.records import RecordParser
from tlp_service.errors import BadRecords, BadSettings
from tlp_service.families.loopnest import features
from tlp_service.families.loopnest.encoder import NestEncoder
from tlp_service.families.loopnest.task import PLATFORMS, task_row
from tlp_service.families.published.encoder import PublishedEncoder
from tlp_service.families.published.features import PUBLISHED
from tlp_service.records.files import log_files
from tlp_service.records.platform_table import PlatformTable
from tlp_service.training.dataset import (
    ImportReport,
    build_sets,
    read_records,
    share_of,
    shuffled_parts,
    split_set,
    without_large_numbers,
)
from tlp_service.training.encoder import best_over_cost


def line(workload="w", costs=(0.1,), error_no=0, steps=(["CI", 1],), target="llvm"):
    return json.dumps(
        {
            "i": [[json.dumps([workload]), target], [[], list(steps)]],
            "r": [list(costs), error_no, 0.1, 1],
            "v": "v0.2",
        }
    )


def encoders():
    return {kind: PublishedEncoder(features) for kind, features in PUBLISHED.items()}


def build(*lines, platform="p"):
    report = ImportReport()
    parser = RecordParser()
    records = [(platform, parser.parse(text)) for text in lines]
    return build_sets(records, encoders(), report), report


def workloads_of(training_set):
    return [task.workload for task in training_set.tasks]


def test_labels_are_the_best_cost_over_each():
    sets, _ = build(line(costs=[0.2, 0.4, 0.1]), line(costs=[0.1], steps=[["CI", 2]]))
    (task,) = sets["cpu"].tasks
    assert task.costs.tolist() == [0.2, 0.1]  # the median of repeats
    assert best_over_cost(task.costs).tolist() == [0.5, 1.0]
    assert sets["cpu"].platforms == ("p",)


def test_equal_candidates_are_one_with_the_costs_of_all():
    sets, _ = build(line(costs=[1.0]), line(costs=[3.0]), line(costs=[2.0]), line(costs=[9.0], steps=[]))
    assert sets["cpu"].tasks[0].costs.tolist() == [2.0, 9.0]


def test_rows_stand_where_positions_say():
    sets, _ = build(line(steps=[["CI", 1], ["CR", 2]]), line(steps=[["CR", 2]]))
    training_set = sets["cpu"]
    rows = training_set.table[training_set.tasks[0].positions]
    assert rows.shape == (2, 25, 22)
    assert rows[0, 1].tolist() == rows[1, 0].tolist() != [0.0] * 22
    assert not rows[1, 1:].any()


def test_cpu_and_gpu_records_make_two_sets():
    gpu = [line(target="cuda", steps=[["CI", n]]) for n in (1, 2)]
    sets, report = build(line(), line(steps=[]), *gpu, line(target="hexagon"))
    assert {kind: s.candidates for kind, s in sets.items()} == {"cpu": 2, "gpu": 2}
    assert report.counts["left out: target of another platform kind"] == 1


def test_a_primitive_without_a_row_leaves_its_record_out_and_is_counted():
    sets, report = build(line(), line(steps=[]), line(steps=[["SA", 1, 2, 3, 4]]))
    assert sets["cpu"].candidates == 2
    assert report.counts["left out: primitive without a row"] == 1


def test_failures_and_impossible_costs_never_become_labels(tmp_path):
    bad = [
        line(costs=[1e10], error_no=4), line(costs=[0.0]), line(costs=[-1e-9]), line(costs=[1e-12]), line(costs=[]),
        line(costs=[0.1], error_no=2),
    ]  # fmt: skip
    good = [line(costs=[0.1]), line(costs=[0.2], steps=[])]
    path = tmp_path / "log.json"
    path.write_text("\n".join(["# comment", *bad, *good, good[0][:40]]))
    report = ImportReport()
    records = list(read_records([path], lambda path: lambda record: "p", report))
    assert len(records) == 2
    assert report.counts == {
        "used: p": 2,
        "left out: failed or implausible run": 6,
        "left out: refused line, not JSON": 1,
    }
    assert [r.number for r in report.refused] == [10]
    task = build_sets(records, encoders(), report)["cpu"].tasks[0]
    assert np.isfinite(best_over_cost(task.costs)).all()


def test_a_task_with_failures_only_is_no_task(tmp_path):
    path = tmp_path / "log.json"
    path.write_text("\n".join(line(costs=[1e10], error_no=2, steps=[["CI", n]]) for n in range(50)))
    report = ImportReport()
    assert build_sets(read_records([path], lambda path: lambda record: "p", report), encoders(), report) == {}
    assert report.counts["left out: failed or implausible run"] == 50


def test_the_split_is_by_workload_over_all_platforms_and_repeatable():
    lines = [line(workload=f"w{n}", steps=[["CI", m]]) for n in range(20) for m in range(3)]
    parser = RecordParser()
    records = [(platform, parser.parse(text)) for platform in ("k80", "v100") for text in lines]
    training_set = build_sets(records, encoders(), ImportReport())["cpu"]
    parts = split_set(training_set, shuffled_parts(workloads_of(training_set), (0.1, 0.2), seed=3))
    workloads = [{t.workload for t in part.tasks} for part in parts]
    assert [len(w) for w in workloads] == [14, 2, 4]
    assert set.union(*workloads) == {f'["w{n}"]' for n in range(20)}
    assert sum(len(w) for w in workloads) == 20  # disjoint
    assert [len(part.tasks) for part in parts] == [28, 4, 8]
    again = split_set(training_set, shuffled_parts(workloads_of(training_set), (0.1, 0.2), seed=3))
    assert [{t.workload for t in part.tasks} for part in again] == workloads


def test_tasks_with_larger_numbers_are_left_out():
    small, large = ([["SP", 0, 0, extent, [n], 1]] for extent in (100, 10**8) for n in (1,))
    sets, _ = build(line("a", steps=small), line("a", steps=[]), line("b", steps=large), line("b", steps=[]))
    assert [t.workload for t in without_large_numbers(sets["cpu"], 1e5).tasks] == ['["a"]']
    assert len(without_large_numbers(sets["cpu"], 1e9).tasks) == 2


def test_too_few_workloads_to_hold_any_back_is_an_error():
    sets, _ = build(line("a"), line("a", steps=[]), line("b"), line("b", steps=[]))
    with pytest.raises(BadRecords, match="2 workloads are too few"):
        shuffled_parts(workloads_of(sets["cpu"]), (0.1, 0.1), seed=0)


def test_parts_without_anything_to_validate_with_are_an_error():
    sets, _ = build(line("a"), line("a", steps=[]), line("b"), line("b", steps=[]))
    parts = {workload: "train" for workload in workloads_of(sets["cpu"])}
    with pytest.raises(BadRecords, match="none are left to validate with"):
        split_set(sets["cpu"], parts)


def test_a_share_is_drawn_from_each_task_of_its_platforms():
    parser = RecordParser()
    lines = [line(f"w{w}", steps=[["CI", n]]) for w in range(5) for n in range(100)]
    records = [(platform, parser.parse(text)) for platform in ("k80", "v100") for text in lines]
    whole = build_sets(records, encoders(), ImportReport())["cpu"]
    few = share_of(whole, 0.07, {"k80"}, seed=0)
    counts = {(t.platform, t.workload): len(t.costs) for t in few.tasks}
    assert {counts["v100", f'["w{w}"]'] for w in range(5)} == {100}
    assert {counts["k80", f'["w{w}"]'] for w in range(5)} <= {7, 8}
    assert [len(t.costs) for t in share_of(whole, 0.07, {"k80"}, seed=0).tasks] == [
        len(t.costs) for t in few.tasks
    ]


def test_base_encodes_tasks_and_nests():
    parser = RecordParser()
    texts = [line(w, steps=[["SP", 0, 0, 64, [n, 2, 1], 1]]) for w in ("a", "b") for n in (1, 4)]
    records = [(platform, parser.parse(text)) for platform in ("y", "x") for text in texts]
    whole = build_sets(records, {"cpu": NestEncoder(["z"])}, ImportReport())["cpu"]
    assert whole.numbered == ("z", "x", "y")  # those of the version that is trained on keep their numbers
    assert [(t.platform, t.workload) for t in whole.tasks] == [
        ("x", '["a"]'),
        ("x", '["b"]'),
        ("y", '["a"]'),
        ("y", '["b"]'),
    ]
    assert [t.positions.tolist() for t in whole.tasks] == [[[n]] * 2 for n in range(4)]
    assert {t.values.shape for t in whole.tasks} == {(2, features.NEST_WIDTH)}
    np.testing.assert_array_equal(whole.table[2], task_row('["a"]', 2))


def test_more_platforms_than_a_network_tells_apart_are_an_error():
    parser = RecordParser()
    records = [(f"p{n}", parser.parse(line())) for n in range(PLATFORMS + 1)]
    with pytest.raises(BadRecords, match="65 platforms are more than the 64"):
        build_sets(records, {"cpu": NestEncoder()}, ImportReport())


def test_log_files_are_found_below_folders_and_by_name(tmp_path):
    for name in ("b.json", "a.log.gz", "sub/c.json.gz", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [p.relative_to(tmp_path).as_posix() for p in log_files([tmp_path])]
    assert found == ["a.log.gz", "b.json", "sub/c.json.gz"]
    with pytest.raises(BadRecords, match="no such file"):
        list(log_files([tmp_path / "missing"]))


TABLE = """folder,where,platform,may_ship_weights
logs/k80,,k80,yes
logs/mixed,target has sm_80,a100,yes
logs/mixed,hardware parameters start with 4,x86-4c,no
"""


@pytest.mark.parametrize(("only_shippable", "x86"), [(False, "x86-4c"), (True, None)])
def test_a_table_tells_platforms_by_folder_and_condition(tmp_path, only_shippable, x86):
    (tmp_path / "platforms.csv").write_text(TABLE)
    table = PlatformTable.read(tmp_path / "platforms.csv", only_shippable)
    parse = RecordParser().parse
    cuda = parse(line(target="cuda -arch=sm_80"))
    cpu = parse(line().replace('"llvm"]', '"llvm", [4, 0, 0, 0, 0, 0, 0, 0]]'))
    assert table(tmp_path / "logs/k80/a.json")(cpu) == "k80"
    assert table(tmp_path / "logs/mixed/a.json")(cuda) == "a100"
    assert table(tmp_path / "logs/mixed/a.json")(cpu) == x86
    assert table(tmp_path / "elsewhere/a.json")(cuda) is None


@pytest.mark.parametrize("text", ["folder,where\na,b\n", TABLE.replace("target has", "the target is")])
def test_a_table_that_cannot_be_read_is_named_with_its_line(tmp_path, text):
    path = tmp_path / "platforms.csv"
    path.write_text(text)
    with pytest.raises(BadSettings, match=r"platforms.csv:[23]: "):
        PlatformTable.read(path)
