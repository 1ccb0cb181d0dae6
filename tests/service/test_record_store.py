"""The record store: what goes in comes out, once, and what is broken is named."""

import gzip
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlp_client.logs import LogReader
from tlp_service.cli import main
from tlp_service.errors import BadRecords
from tlp_service.records.files import log_files
from tlp_service.records.importer import import_logs
from tlp_service.records.platform_table import OnePlatform, PlatformTable
from tlp_service.records.reader import stored_records
from tlp_service.records.split import check_no_leak, part_of, parts_by_source, parts_by_workload
from tlp_service.records.store import RecordStore

EPYC = OnePlatform("epyc")


@pytest.fixture
def store(tmp_path):
    return RecordStore.create(tmp_path / "store", seed=3)


def write(path, lines, end="\n"):
    path.write_bytes(
        b"".join(line + end.encode() for line in (x if isinstance(x, bytes) else x.encode() for x in lines))
    )
    return path


def records_of(store):
    return [record for _, record in stored_records(store)]


def test_records_come_back_as_they_were_read(tmp_path, store, measured_lines, cuda_lines):
    log = write(tmp_path / "log.json", [*measured_lines, *cuda_lines])
    summary, added = import_logs([log], store, EPYC, processes=1)
    expected = [r for _, r in LogReader().read_lines([x.encode() for x in (*measured_lines, *cuda_lines)])]
    assert added == {"epyc": len(expected)}
    assert summary.platforms == Counter(epyc=len(expected))
    assert summary.failed["epyc"] == sum(not r.is_valid for r in expected)
    read = records_of(store)
    assert sorted(r.primitives for r in read) == sorted(r.primitives for r in expected)
    key = lambda r: (r.task.workload_key, r.task.target, r.task.hardware, r.primitives, r.costs, r.error_no)
    assert Counter(map(key, read)) == Counter(map(key, expected))
    assert {(r.all_cost, r.timestamp, r.version) for r in read} == {
        (r.all_cost, r.timestamp, r.version) for r in expected
    }


def test_what_is_there_already_is_not_added_again(tmp_path, store, measured_lines):
    first = write(tmp_path / "a.json", measured_lines[:50])
    with gzip.open(tmp_path / "b.json.gz", "wb") as file:
        file.write("\n".join(measured_lines[30:80]).encode())
    assert import_logs([first, tmp_path / "b.json.gz"], store, EPYC, processes=1)[1] == {"epyc": 80}
    assert import_logs([first], store, EPYC, processes=1)[1] == {"epyc": 0}
    assert len(records_of(store)) == 80


def test_the_same_line_on_two_platforms_is_two_measurements(tmp_path, store, cuda_lines):
    log = write(tmp_path / "log.json", cuda_lines[:5])
    import_logs([log], store, OnePlatform("k80"), processes=1)
    import_logs([log], store, OnePlatform("v100"), processes=1)
    assert store.platforms == ("k80", "v100")
    assert len(list(stored_records(store))) == 10
    assert len(list(stored_records(store, ["k80"]))) == 5


def test_processes_give_what_one_gives(tmp_path, measured_lines):
    logs = [write(tmp_path / f"{n}.json", measured_lines[n * 20 : n * 20 + 30]) for n in range(6)]
    found = []
    for processes in (1, 3):
        store = RecordStore.create(tmp_path / f"store-{processes}")
        summary, added = import_logs(logs, store, EPYC, processes)
        rows = store.read("epyc").sort_by("id").to_pylist()
        found.append((summary.platforms, added, rows))
    assert found[0] == found[1]


def test_broken_lines_are_quarantined_with_their_place_and_cause(tmp_path, store, measured_lines):
    lines = [
        b"\xef\xbb\xbf" + measured_lines[0].encode(),
        b"",
        b"# a comment",
        b"\0" * 40,
        measured_lines[1].encode() + b"\r",
        measured_lines[2].encode()[:80],
        b'{"i": [["k", "llvm"], [[], [["PPT", 1]]]], "r": [[0.1], 0, 1, 1], "v": "v0.6"}',
    ]
    log = write(tmp_path / "log.json", lines)
    summary, added = import_logs([log], store, EPYC, processes=1)
    assert added == {"epyc": 2}
    noted = [json.loads(line) for line in (store.folder / "quarantine.jsonl").read_text().splitlines()]
    assert [(n["source"], n["line"]) for n in noted] == [(str(log), 4), (str(log), 6), (str(log), 7)]
    assert "unknown primitive kind 'PPT'" in noted[2]["reason"]
    assert sum(summary.left_out.values()) == 3
    import_logs([log], store, EPYC, processes=1)
    assert len((store.folder / "quarantine.jsonl").read_text().splitlines()) == 3


def test_a_log_that_is_being_written_gives_its_last_record_when_it_is_whole(tmp_path, store, measured_lines):
    log = tmp_path / "log.json"
    log.write_text("\n".join(measured_lines[:3]) + "\n" + measured_lines[3][:200])
    assert import_logs([log], store, EPYC, processes=1)[1] == {"epyc": 3}
    log.write_text("\n".join(measured_lines[:5]))
    assert import_logs([log], store, EPYC, processes=1)[1] == {"epyc": 2}


@pytest.mark.parametrize("cost", ["NaN", "Infinity", "-1e-9", "0.0", "1e10", "1e400", '"x"'])
def test_costs_that_are_none_are_refused_or_kept_as_failed(tmp_path, store, measured_lines, cost):
    document = json.loads(measured_lines[0])
    line = json.dumps({**document, "r": [["COST"], 0, 0.1, 1]}).replace('"COST"', cost)
    log = write(tmp_path / "log.json", [line, measured_lines[1]])
    summary, _ = import_logs([log], store, EPYC, processes=1)
    valid = [record for record in records_of(store) if record.is_valid]
    assert len(valid) == 1
    assert summary.failed["epyc"] + sum(summary.left_out.values()) == 1


def test_records_without_a_platform_are_left_out_and_counted(tmp_path, store, measured_lines):
    log = write(tmp_path / "log.json", measured_lines[:4])
    (tmp_path / "table.csv").write_text("folder,where,platform,may_ship_weights\nelsewhere,,epyc,yes\n")
    summary, added = import_logs([log], store, PlatformTable.read(tmp_path / "table.csv"), processes=2)
    assert (added, summary.left_out) == ({}, Counter({"no platform": 4}))


def test_a_failed_import_leaves_the_store_as_it_was(tmp_path, store, measured_lines, monkeypatch):
    import_logs([write(tmp_path / "a.json", measured_lines[:5])], store, EPYC, processes=1)
    before = sorted(p.name for p in store.folder.iterdir())
    monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        import_logs([write(tmp_path / "b.json", measured_lines[5:9])], store, EPYC, processes=1)
    monkeypatch.undo()
    assert len(records_of(RecordStore(store.folder))) == 5
    assert sorted(p.name for p in store.folder.iterdir()) == before


def test_what_is_no_store_is_refused(tmp_path, measured_lines):
    with pytest.raises(BadRecords, match=r"store.json is missing"):
        RecordStore(tmp_path)
    write(tmp_path / "log.json", measured_lines[:1])
    with pytest.raises(BadRecords, match="neither a record store nor empty"):
        RecordStore.create(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "store.json").write_text('{"form": 2, "seed": 0}')
    with pytest.raises(BadRecords, match="form 2"):
        RecordStore(tmp_path / "other")
    with pytest.raises(BadRecords, match="no such file"):
        list(log_files([tmp_path / "missing"]))


def test_a_store_can_be_made_by_several_at_once(tmp_path):
    """Recorder and trainer begin together; the loser took the other's half-made note for a stranger's file."""
    with ThreadPoolExecutor(8) as pool:
        for n in range(20):
            made = list(pool.map(lambda seed, n=n: RecordStore.create(tmp_path / str(n), seed), range(8)))
            assert len({store.seed for store in made}) == 1


def test_a_store_whose_maker_was_killed_can_be_made(tmp_path):
    (tmp_path / ".store.json.4711").write_text("{")
    assert RecordStore.create(tmp_path, seed=5).seed == 5


def test_a_path_that_cannot_be_written_is_one_line(tmp_path, measured_lines, capsys):
    log = write(tmp_path / "log.json", measured_lines[:1])
    (tmp_path / "file").write_text("")
    store = tmp_path / "file" / "store"
    assert main(["records", "import", str(log), "--store", str(store), "--platform", "epyc"]) == 1
    assert capsys.readouterr().err == f"tlp records: [Errno 20] Not a directory: '{store}'\n"


def test_an_import_of_no_record_is_no_success(tmp_path, capsys):
    log = write(tmp_path / "log.json", ["{", "no record"])
    assert main(["records", "import", str(log), "--store", str(tmp_path / "s"), "--platform", "epyc"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("1 files, 0 records, 0 new\n  left out, refused line")
    assert err == "tlp: no record in the logs\n"


def test_shown_as_failed_is_what_is_never_learned_from(tmp_path, measured_lines, store, capsys):
    good, other = measured_lines[:2]
    record = json.loads(other)
    record["r"][0] = [0]  # a run that is told to have succeeded, in no time
    import_logs([write(tmp_path / "log.json", [good, json.dumps(record)])], store, EPYC, processes=1)
    assert main(["records", "show", str(store.folder)]) == 0
    assert capsys.readouterr().out.splitlines()[2].split()[:3] == ["epyc", "2", "1"]


def test_the_command_imports_and_shows(tmp_path, measured_lines, capsys):
    write(tmp_path / "logs.json", [*measured_lines, "{"])
    arguments = [
        "records",
        "import",
        str(tmp_path / "logs.json"),
        "--store",
        str(tmp_path / "s"),
        "--platform",
        "epyc",
    ]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert f"{len(measured_lines)} records" in out
    assert "left out, refused line" in out
    assert main(["records", "show", str(tmp_path / "s")]) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[:2] == ["epyc", str(len(measured_lines))]
    assert int(row[3]) == sum(map(int, row[4:])) + 1  # of one task all runs failed
    assert main(["records", "show", str(tmp_path)]) == 2
    assert "no record store" in capsys.readouterr().err


def test_parts_stay_when_records_are_added_and_differ_by_seed():
    workloads = [f'["{n}"]' for n in range(1000)]
    few, many = parts_by_workload(workloads[:10], 0), parts_by_workload(workloads, 0)
    assert all(many[w] == part for w, part in few.items())
    shares = Counter(many.values())
    assert 750 < shares["train"] < 850
    assert 70 < shares["validation"] < 130
    assert 70 < shares["test"] < 130
    assert parts_by_workload(workloads, 1) != many
    assert part_of("x", 0) == part_of("x", 0)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("123456")), min_size=1))
def test_no_log_is_in_two_parts(sources):
    for seed in range(5):
        parts = parts_by_source(sources, seed)
        of_log = {}
        for workload, source in sources:
            of_log.setdefault(source, set()).add(parts[workload])
        assert all(len(found) == 1 for found in of_log.values())


def test_a_leak_fails_loudly():
    check_no_leak({"train": ["a", "b"], "test": ["c"]})
    with pytest.raises(BadRecords, match="the split leaks: workload b is in train and in test"):
        check_no_leak({"train": ["a", "b"], "test": ["b"]})
