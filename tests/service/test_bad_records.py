"""Bad records through the real importer into a real store.

What is kept, what is refused, and what is never learned from.
"""

import gzip
import json
from collections import Counter

import numpy as np
import pytest

from tlp_service.cli import main
from tlp_service.evaluation.evaluate import evaluate
from tlp_service.families.published.encoder import PublishedEncoder
from tlp_service.families.published.features import PUBLISHED
from tlp_service.records.importer import import_logs
from tlp_service.records.platform_table import OnePlatform, PlatformTable
from tlp_service.records.reader import part_of_store, stored_records
from tlp_service.training.dataset import ImportReport, build_sets, valid_records

EPYC = OnePlatform("epyc")
HARDWARE = [8, 64, 64, 0, 0, 0, 0, 0]


def line(stage=1, costs=(0.1,), error_no=0, key='["w"]', target="llvm", steps=None, timestamp=1):
    steps = [["CI", stage]] if steps is None else steps
    measured = [[key, target, HARDWARE], [[], steps]]
    return json.dumps({"i": measured, "r": [list(costs), error_no, 0.1, timestamp], "v": "v0.3"})


#: two candidates that nothing is wrong with, the later stage twice as fast
GOOD = [line(1, [0.2]), line(2, [0.1])]


def write(path, lines):
    path.write_bytes(b"".join((x if isinstance(x, bytes) else x.encode()) + b"\n" for x in lines))
    return path


def read_in(store, lines, platform_of=EPYC, name="log.json"):
    log = write(store.folder.parent / name, lines)
    return import_logs([log], store, platform_of, processes=1)


def records_of(store):
    return [record for _, record in stored_records(store)]


def quarantined(store):
    path = store.folder / "quarantine.jsonl"
    notes = [json.loads(note) for note in path.read_text().splitlines()] if path.exists() else []
    return [(note["line"], note["reason"]) for note in notes]


def labels(store):
    """Labels of all tasks that training sees."""
    report = ImportReport()
    encoders = {kind: PublishedEncoder(features) for kind, features in PUBLISHED.items()}
    sets = build_sets(valid_records(stored_records(store), report), encoders, report)
    return [one.labels(task.costs).tolist() for one in sets.values() for task in one.tasks]


def ranked(scorer, store, min_candidates=2):
    """Return what an evaluation says of each task, and what it left out.

    For a task it says platform, candidates, best cost and Kendall's tau.
    """
    found = evaluate(scorer, stored_records(store), min_candidates)
    return [(t.platform, t.candidates, t.best_s, t.kendall_tau) for t in found.tasks], found.left_out


@pytest.mark.parametrize(
    "cost", ["NaN", "Infinity", "-Infinity", "1e400", '"NaN"', "null", "true", "1" * 400]
)
def test_a_cost_that_is_no_finite_number_is_quarantined(store, scorer, cost):
    bad = line(3, ["COST"]).replace('"COST"', cost)
    summary, added = read_in(store, [GOOD[0], bad, GOOD[1]])
    assert added == {"epyc": 2}
    ((number, reason),) = quarantined(store)
    assert number == 2
    assert "r[0][0], a cost, is a finite number in seconds" in reason
    assert summary.left_out.total() == 1
    assert labels(store) == [[0.5, 1.0]]
    assert ranked(scorer, store) == ([("epyc", 2, 0.1, 1.0)], Counter())


@pytest.mark.parametrize(
    ("costs", "error_no"),
    [([0.0], 0), ([0], 0), ([-1e-9], 0), ([-0.1], 0), ([1e-12], 0), ([1e9], 0), ([], 0)]  # no run time
    + [([1e10], 0), ([10**10], 0), ([2**60 + 1], 0), ([10**300], 0)]  # TVM's sentinel, and larger
    + [([0.1, 0.0, 0.1], 0), ([0.1, 1e10], 0)]  # among repeats
    + [([0.01], error_no) for error_no in range(1, 9)]  # the fastest, if it had not failed
    + [([1e10], 4), ([], 2), ([0.0], 7)],
)
def test_a_failed_or_implausible_run_is_kept_as_invalid_and_is_no_slow_candidate(
    store, scorer, costs, error_no
):
    """apache/tvm PR #13354: a run time of zero broke the task scheduler."""
    summary, added = read_in(store, [GOOD[0], line(3, costs, error_no), GOOD[1]])
    assert (added, summary.failed) == ({"epyc": 3}, Counter(epyc=1))
    assert quarantined(store) == []
    (kept,) = (record for record in records_of(store) if not record.is_valid)
    assert (kept.costs, kept.error_no) == (tuple(map(float, costs)), error_no)
    assert labels(store) == [[0.5, 1.0]]
    assert ranked(scorer, store) == ([("epyc", 2, 0.1, 1.0)], Counter({"failed runs": 1}))


@pytest.mark.parametrize("count", [50, 5000])
def test_a_task_of_failures_only_is_kept_counted_and_no_task(store, scorer, count):
    """apache/tvm #16670 and #15206: that a log held failures only was found out at the last step."""
    failed = [line(n, [1e10], 4, key='["failed"]') for n in range(count)]
    summary, _ = read_in(store, [*failed, *GOOD])
    assert (summary.platforms, summary.failed) == (Counter(epyc=count + 2), Counter(epyc=count))
    assert len(records_of(store)) == count + 2
    assert labels(store) == [[0.5, 1.0]]
    assert ranked(scorer, store) == ([("epyc", 2, 0.1, 1.0)], Counter({"failed runs": count}))


def test_a_store_of_failures_only_gives_figures_of_nothing(store, capsys):
    """apache/tvm #16670 and #15206, when it is all there is."""
    read_in(store, [line(n, [1e10], 2) for n in range(20)])
    assert labels(store) == []
    assert main(["evaluate", str(store.folder)]) == 1
    out, err = capsys.readouterr()
    assert "left out, failed runs: 20" in out
    assert err == "tlp: no task with enough candidates to rank\n"


@pytest.mark.parametrize("lines", [[], ["", "# nothing measured yet", ""]])
def test_a_log_without_records_gives_an_empty_store(store, scorer, lines, capsys):
    summary, added = read_in(store, lines)
    assert (summary.files, added, store.platforms) == (1, {}, ())
    assert (quarantined(store), records_of(store), labels(store)) == ([], [], [])
    assert ranked(scorer, store) == ([], Counter())
    assert main(["records", "show", str(store.folder)]) == 0
    assert main(["evaluate", str(store.folder)]) == 1


def test_a_task_of_one_record_is_kept_but_cannot_be_ranked(store, scorer, tmp_path):
    read_in(store, [*GOOD, line(1, key='["alone"]')])
    assert len(records_of(store)) == 3
    assert labels(store) == [[0.5, 1.0]]
    expected = Counter({"tasks of fewer than 2 candidates": 1})
    assert ranked(scorer, store) == ([("epyc", 2, 0.1, 1.0)], expected)


def test_figures_that_one_record_or_equal_costs_do_not_have_are_null(store, scorer):
    read_in(store, [line(1, key='["alone"]'), line(1, key='["equal"]'), line(2, key='["equal"]')])
    found = evaluate(scorer, stored_records(store), min_candidates=1)
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [(t["candidates"], t["top1_s"], t["kendall_tau"]) for t in document["tasks"]] == [
        (1, 0.1, None),
        (2, 0.1, None),
    ]
    assert document["platforms"]["epyc"]["pair_accuracy"] == {"value": None, "low": None, "high": None}
    assert "epyc: 2 tasks, 3 candidates" in found.table()


MIXED = [
    line(stage, [cost], target=target)
    for target, costs in (("cuda", [4.0, 2.0, 1.0]), ("llvm", [0.1, 0.2, 0.4]), ("hexagon", [9.0, 8.0, 7.0]))
    for stage, cost in enumerate(costs)
]


def test_mixed_targets_in_a_log_are_told_apart_by_their_kind(store, scorer):
    summary, added = read_in(store, MIXED, OnePlatform())
    assert (added, summary.left_out) == ({"cpu": 3, "gpu": 3}, Counter({"no platform": 3}))
    assert sorted(labels(store)) == [[0.25, 0.5, 1.0], [1.0, 0.5, 0.25]]
    assert ranked(scorer, store) == ([("cpu", 3, 0.1, -1.0), ("gpu", 3, 1.0, 1.0)], Counter())


@pytest.mark.parametrize("platform", ["epyc", "k80", "unheard-of"])
def test_mixed_targets_under_one_name_are_never_one_task(store, scorer, platform):
    _, added = read_in(store, MIXED, OnePlatform(platform))
    assert added == {platform: 9}
    assert sorted(labels(store)) == [[0.25, 0.5, 1.0], [1.0, 0.5, 0.25]]
    tasks, left_out = ranked(scorer, store)
    cpu, gpu = (platform, 3, 0.1, -1.0), (platform, 3, 1.0, 1.0)
    # A name of the version contradicts targets of the other kind, and decides where the target's kind is unknown.
    odd = (platform, 3, 7.0, 1.0)
    assert tasks == {"epyc": [odd, cpu], "k80": [odd, gpu], "unheard-of": [cpu, gpu]}[platform]
    assert left_out["candidates of a target that the version does not know"] == 3


STEP = '["CI", 1]'


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ('["PPT", 2, 0]', "primitive 0: unknown primitive kind 'PPT'"),
        ('["XX"]', "primitive 0: unknown primitive kind 'XX'"),
        ("[]", "primitive 0: a primitive is a list [kind, arguments…], not []"),
        ('"SP"', "primitive 0: a primitive is a list [kind, arguments…], not 'SP'"),
        ("[7, 1]", "primitive 0: a primitive begins with its kind, not with 7"),
        ('["CI"]', "primitive 0: CI takes 1 arguments, not 0"),
        ('["CI", 3000000000]', "argument 'stage' of CI is an integer in 32 bits"),
    ],
)
def test_a_step_of_an_unknown_kind_or_form_is_quarantined(store, scorer, step, reason):
    summary, added = read_in(store, [GOOD[0], line(1).replace(STEP, step), GOOD[1]])
    assert added == {"epyc": 2}
    ((number, found),) = quarantined(store)
    assert number == 2
    assert found.startswith(reason) or reason in found
    assert summary.left_out.total() == 1
    assert ranked(scorer, store) == ([("epyc", 2, 0.1, 1.0)], Counter())


@pytest.mark.parametrize("hardware", [2**31, 10**30, "8", None, 1.5, True])
def test_hardware_parameters_that_are_no_int_of_tvm_are_quarantined(store, hardware):
    bad = line().replace("[8, 64,", f"[{json.dumps(hardware)}, 64,")
    assert read_in(store, [bad, *GOOD])[1] == {"epyc": 2}
    assert quarantined(store) == [(1, "task[2], the hardware parameters, are 8 integers in 32 bits")]


@pytest.mark.parametrize("timestamp", [0, 1.5, 2**60 + 1, 10**300])
def test_numbers_of_any_size_are_stored(store, timestamp):
    assert read_in(store, [line(timestamp=timestamp)])[1] == {"epyc": 1}
    assert [record.timestamp for record in records_of(store)] == [float(timestamp)]


@pytest.mark.parametrize("share", [0.01, 0.2, 0.4, 0.6, 0.8, 0.99])
def test_one_cut_line_of_64_is_quarantined_and_63_are_kept(store, measured_lines, share):
    lines = measured_lines[:64]
    lines[17] = lines[17][: int(len(lines[17]) * share)]
    summary, added = read_in(store, lines)
    assert added == {"epyc": 63}
    ((number, reason),) = quarantined(store)
    assert number == 18
    assert reason.startswith("not JSON: ")
    assert summary.left_out == Counter({"refused line, not JSON": 1})


@pytest.mark.parametrize(
    ("contents", "good", "refused"),
    [
        (b"%s\n\n%s\n", 2, []),
        (b"%s\n# comment\n%s", 2, []),
        (b"%s\n\0\0\0\0\n%s\n", 2, [2]),
        (b"\xef\xbb\xbf%s\n%s\n", 2, []),
        (b"%s\r\n%s\r\n", 2, []),
        (b"%s\n\xff\xfe\n%s\n", 2, [2]),
        (b"%s\n%s{}\n", 1, [2]),
        (b"%s\n[%s]\n", 1, [2]),
    ],
    ids=["blank", "comment-no-newline", "nul", "bom", "crlf", "not-utf-8", "two-on-a-line", "list"],
)
def test_what_is_no_record_does_not_stop_a_log(store, tmp_path, contents, good, refused):
    """dart-lang/tools #170: one bad row made a whole log unusable."""
    log = tmp_path / "log.json"
    log.write_bytes(contents % tuple(text.encode() for text in GOOD))
    summary, added = import_logs([log], store, EPYC, processes=1)
    assert added == {"epyc": good}
    assert [number for number, _ in quarantined(store)] == refused
    assert summary.left_out.total() == len(refused)


@pytest.mark.parametrize("marks", [(b"\n", b"\r\n"), (b"\n", b""), (b"\n", b"BOM"), (b"\n", b"gzip")])
def test_the_same_measurement_comes_in_once_whatever_its_file_looks_like(store, tmp_path, marks):
    logs = []
    for number, mark in enumerate(marks):
        contents = (b"\n" if mark in (b"BOM", b"gzip") else mark or b"\n").join(x.encode() for x in GOOD)
        contents = b"\xef\xbb\xbf" + contents if mark == b"BOM" else contents
        logs.append(tmp_path / f"{number}.json")
        logs[-1].write_bytes(gzip.compress(contents) if mark == b"gzip" else contents)
    summary, added = import_logs([*logs, logs[0]], store, EPYC, processes=1)
    assert (summary.platforms, added) == (Counter(epyc=6), {"epyc": 2})
    assert len(records_of(store)) == 2


def test_a_candidate_measured_twice_is_two_records_and_one_candidate(store, scorer):
    again = [line(2, [0.3], timestamp=2), line(2, [0.25], timestamp=3), line(2, [1e10], 4, timestamp=4)]
    _, added = read_in(store, [*GOOD, *again, GOOD[0]])
    assert added == {"epyc": 5}
    assert labels(store) == [[1.0, np.float32(0.2 / 0.25)]]
    assert ranked(scorer, store) == ([("epyc", 2, 0.2, -1.0)], Counter({"failed runs": 1}))


def lines_in(store):
    """Number and stage of each stored line."""
    rows = store.read("epyc", ["line", "primitives"]).to_pylist()
    return sorted((row["line"], json.loads(row["primitives"])[0][1]) for row in rows)


def test_a_log_that_grows_while_it_is_read_gives_its_whole_lines_and_the_rest_later(store, tmp_path):
    lines = [line(n) for n in range(6)]
    log = tmp_path / "log.json"
    log.write_text(f"{lines[0]}\n{lines[1]}\n{lines[2][:40]}")

    def platform_of(path):
        def of_record(record):
            if record.primitives[0].args == (1,):  # the search goes on while its second line is read
                with log.open("a") as file:
                    file.write(f"{lines[2][40:]}\n{lines[3]}\n{lines[4][:-5]}")
            return "epyc"

        return of_record

    assert import_logs([log], store, platform_of, processes=1)[1] == {"epyc": 4}
    assert [number for number, _ in quarantined(store)] == [5]
    with log.open("a") as file:
        file.write(f"{lines[4][-5:]}\n{lines[5]}")  # a record, though its end of line is not written yet
    assert import_logs([log], store, EPYC, processes=1)[1] == {"epyc": 2}
    assert quarantined(store) == []
    assert lines_in(store) == [(n + 1, n) for n in range(6)]
    assert import_logs([log], store, EPYC, processes=1)[1] == {"epyc": 0}


@pytest.mark.slow
def test_a_log_may_be_imported_at_any_moment_of_its_search(store, tmp_path):
    log = tmp_path / "log.json"
    contents = "".join(line(n) + "\n" for n in range(20))
    written, found = 0, 0
    while written < len(contents):
        with log.open("a") as file:
            written += file.write(contents[written : written + 67])
        found += import_logs([log], store, EPYC, processes=1)[1].get("epyc", 0)
        assert found >= contents[:written].count("\n")
    assert found == 20
    assert quarantined(store) == []
    assert lines_in(store) == [(n + 1, n) for n in range(20)]


def test_a_gzip_log_that_is_cut_gives_what_can_be_read(store, tmp_path, measured_lines):
    whole = gzip.compress("\n".join(measured_lines).encode())
    log = tmp_path / "log.json.gz"
    log.write_bytes(whole[: len(whole) // 2])
    _, added = import_logs([log], store, EPYC, processes=1)
    ((number, reason),) = quarantined(store)
    assert number == added["epyc"] + 1 > 50
    assert reason.startswith("the rest cannot be read: ")
    log.write_bytes(whole)
    assert import_logs([log], store, EPYC, processes=1)[1] == {"epyc": 248 - added["epyc"]}
    assert quarantined(store) == []


def test_a_bad_log_leaves_the_quarantine_of_the_others_alone(store):
    read_in(store, ["{", *GOOD], name="first.json")
    read_in(store, [*GOOD, "[]"], name="second.json")
    assert [number for number, _ in quarantined(store)] == [1, 3]
    read_in(store, GOOD, name="first.json")
    assert [number for number, _ in quarantined(store)] == [3]


@pytest.mark.parametrize("steps", [[], [["PR", 0, 0, "auto_unroll_max_step$0"]]])
def test_a_trivial_schedule_among_31_others_is_a_candidate(store, scorer, steps):
    """apache/tvm PR #14591: a trivial function had no features, and the model call failed."""
    read_in(store, [line(steps=steps, costs=[1.0]), *(line(n, [1 / n]) for n in range(2, 33))])
    assert min(len(record.primitives) for record in records_of(store)) == len(steps)
    assert ranked(scorer, store) == ([("epyc", 32, 1 / 32, 1.0)], Counter())


def test_a_step_without_a_row_leaves_out_its_candidate_only(store, scorer):
    """apache/tvm PR #14591, for the part of a candidate that has no features."""
    read_in(store, [*GOOD, line(steps=[["CI", 1], ["SA", 1, 2, 3, 4]])])
    assert labels(store) == [[0.5, 1.0]]
    assert ranked(scorer, store)[0] == [("epyc", 2, 0.1, 1.0)]
    assert ranked(scorer, store)[1] == Counter({"candidates that the version cannot score": 1})


def test_the_longest_records_are_stored_whole_and_ranked_by_what_the_version_reads(store, scorer):
    """apache/tvm #13574: a model of one width met candidates of another in the middle of a long job."""
    wide = ["RE", 1, list(range(35))]
    long = [line(costs=[1 / n], steps=[["CI", n], wide, *([["CI", 0]] * 68)]) for n in (1, 2, 3)]
    read_in(store, [*long, *GOOD])
    lengths = Counter(len(record.primitives) for record in records_of(store))
    assert lengths == {70: 3, 1: 2}
    assert max(len(p.args[1]) for r in records_of(store) for p in r.primitives if p.kind == "RE") == 35
    tasks, left_out = ranked(scorer, store)
    assert [(task[1], left_out) for task in tasks] == [(5, Counter())]


def test_the_stated_platform_decides_where_records_cannot_tell(store, scorer, tmp_path):
    """AndrewZhaoLuo/TVM-Sandbox #2: K80 and V100 logs hold the same target and hardware parameters."""
    cuda = [line(n, [1 / n], target="cuda") for n in (1, 2)]
    for name in ("k80", "v100", "nobody-knows"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "log.json", cuda)
    (tmp_path / "table.csv").write_text(
        "folder,where,platform,may_ship_weights\nk80,,k80,yes\nv100,,v100,yes\n"
    )
    logs = sorted(tmp_path.glob("*/log.json"))
    summary, added = import_logs(logs, store, PlatformTable.read(tmp_path / "table.csv"), processes=1)
    assert (added, summary.left_out) == ({"k80": 2, "v100": 2}, Counter({"no platform": 2}))
    assert ranked(scorer, store) == ([("k80", 2, 0.5, 1.0), ("v100", 2, 0.5, 1.0)], Counter())


@pytest.mark.parametrize(
    "spellings",
    [
        ('["0ac8"]', '[ "0ac8" ]', '["0ac8"]\n'),
        ('["0ac8", [1, 56], [3, 3]]', '["0ac8",[1,56],[3,3]]', '["0ac8",  [1,56], [3, 3] ]'),
        ('["conv2d_layer", 1, 7, 512]', '["conv2d_layer",1,7,512]', '[ "conv2d_layer", 1,7, 512]'),
    ],
)
def test_a_workload_is_one_task_however_its_key_is_spelt(store, scorer, spellings):
    """apache/tvm PR #6927 and #7395: keys changed on the way, and records of one workload looked unrelated."""
    read_in(store, [line(n, [1 / n], key=key) for n, key in enumerate(spellings, start=1)])
    assert {record.task.workload_key for record in records_of(store)} == set(spellings)
    assert [len(task) for task in labels(store)] == [3]
    assert ranked(scorer, store) == ([("epyc", 3, 1 / 3, 1.0)], Counter())
    parts = [len(list(part_of_store(store, part))) for part in ("train", "validation", "test")]
    assert sorted(parts) == [0, 0, 3]
