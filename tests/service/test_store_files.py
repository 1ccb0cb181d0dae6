"""A record store with unusable files, or with files of other programs: the rest is read, and nothing stops for ever."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from stored import rows_of, stored

from tlp_service.cli import main
from tlp_service.errors import BadRecords, DamagedRecords
from tlp_service.measurements.recorder import Recorder
from tlp_service.measurements.stream import STREAM, Entry
from tlp_service.records import store as store_module
from tlp_service.records.importer import import_logs
from tlp_service.records.platform_table import OnePlatform
from tlp_service.records.reader import stored_records, stored_sources
from tlp_service.records.schema import SCHEMA
from tlp_service.records.store import RecordStore
from tlp_service.records.stored_file import StoredFile


@pytest.fixture
def store(tmp_path):
    return RecordStore.create(tmp_path / "store", seed=4)


def fill(store, lines, platform="epyc"):
    """Put records into a store, and return their file."""
    store.append([rows_of(lines, platform)])
    return max((store.folder / f"platform={platform}").glob("part-*.parquet"), default=None)


def imported(store, lines, platform="epyc"):
    log = store.folder.parent / "log.json"
    log.write_text("\n".join(lines))
    return import_logs([log], store, OnePlatform(platform), processes=1)[1]


@contextlib.contextmanager
def read_only(store, monkeypatch):
    """Make renaming and locking fail as on a read-only mount; root may write despite permissions."""
    with monkeypatch.context() as patch:
        patch.setattr("tlp_service.records.store.alone_in", _refused)
        yield


def _refused(folder, max_wait_s):
    raise OSError(30, "Read-only file system")


def large(rows):
    """Return rows as polars writes them."""
    change = {pa.string(): pa.large_string(), pa.binary(16): pa.large_binary()}
    lists = {n: pa.large_list(SCHEMA.field(n).type.value_type) for n in ("hardware", "costs")}
    return rows.cast(
        pa.schema([(f.name, lists.get(f.name) or change.get(f.type, f.type)) for f in rows.schema])
    )


def retyped(**types):
    return lambda rows: rows.cast(pa.schema([(f.name, types.get(f.name, f.type)) for f in rows.schema]))


def replaced(name, values):
    def replace(rows):
        column = values(rows[name]) if callable(values) else pa.array(values * len(rows))
        return rows.set_column(rows.schema.names.index(name), name, column)

    return replace


#: Ways in which a program may rewrite a file so that all records are still readable.
REWRITTEN = {
    "large strings": large,
    "views": retyped(target=pa.string_view(), primitives=pa.string_view(), id=pa.binary_view()),
    "other order": lambda rows: rows.select(rows.schema.names[::-1]),
    "one more": lambda rows: rows.append_column("note", pa.array(["x"] * len(rows))),
    "dictionaries": lambda rows: pa.table(
        [c.combine_chunks().dictionary_encode() if pa.types.is_string(c.type) else c for c in rows.columns],
        rows.schema.names,
    ),
    "wide numbers": retyped(error_no=pa.int64(), line=pa.int64()),
    "narrow lists": retyped(hardware=pa.list_(pa.int32()), costs=pa.large_list(pa.float64())),
    "numbers as floats": retyped(error_no=pa.float64(), line=pa.float64()),
    "whole seconds": retyped(timestamp=pa.int64()),
    # Programs that partition by platform leave its column out, since the folder's name contains it.
    "no platform": lambda rows: rows.drop_columns(["platform"]),
    "platform of another name": replaced("platform", ["k80"]),
    "blanks": replaced(
        "primitives", lambda texts: pa.array([json.dumps(json.loads(t)) for t in texts.to_pylist()])
    ),
    "small row groups": lambda rows: rows,
}

#: Ways in which a program may rewrite a file so that it has no readable records.
UNUSABLE = {
    **{f"no {name}": (lambda rows, name=name: rows.drop_columns([name])) for name in ("id", "line", "costs")},
    "two of a name": lambda rows: rows.append_column("line", rows["line"]),
    "text for a number": retyped(error_no=pa.string()),
    "number for a text": replaced("source", [7]),
    "too large a number": replaced("error_no", [1000]),
    "half a number": replaced("line", [0.5]),
    "a null": replaced("target", [None]),
    "a null in a list": replaced("costs", [[0.1, None]]),
    "long ids": replaced("id", [b"x" * 17]),
    "hex ids": replaced("id", lambda ids: pa.array([i.hex() for i in ids.to_pylist()])),
    "no text": replaced("primitives", [b"\xff\xfe"]),
    "dates": replaced("timestamp", lambda times: pa.array([0] * len(times)).cast(pa.timestamp("us"))),
}


def rewrite(file, how):
    """Rewrite a file as another program would."""
    how_rows = {**REWRITTEN, **UNUSABLE}[how]
    rows = how_rows(pq.ParquetFile(file).read())
    pq.write_table(rows, file, row_group_size=2 if how == "small row groups" else None)


@pytest.mark.parametrize("how", REWRITTEN)
def test_a_file_that_another_program_wrote_anew_is_read_by_name_and_cast(store, measured_lines, how, caplog):
    file = fill(store, measured_lines[:8])
    before, table = stored(store), store.read("epyc")
    rewrite(file, how)
    assert stored(store) == before
    if how != "blanks":
        assert store.read("epyc") == table
    assert store.read("epyc").schema == SCHEMA
    assert imported(store, measured_lines[4:12]) == {"epyc": 4}
    (merged,) = (store.folder / "platform=epyc").iterdir()
    assert stored(store).total() == 12
    assert stored(store) >= before
    assert pq.read_schema(merged).remove_metadata() == SCHEMA
    assert not caplog.records


@pytest.mark.parametrize("how", UNUSABLE)
def test_a_file_that_cannot_be_cast_is_set_aside_and_named_in_one_line(store, measured_lines, how, caplog):
    good, bad = fill(store, measured_lines[:3]), fill(store, measured_lines[3:5])
    rewrite(bad, how)
    assert store.read("epyc").num_rows == stored(store).total() == 3
    (line,) = caplog.messages
    assert line.startswith(f"{bad} is damaged: ")
    assert line.endswith(f"; it is set aside as {bad.name}.damaged")
    assert "\n" not in line
    assert {path.name for path in good.parent.iterdir()} == {good.name, f"{bad.name}.damaged"}
    assert imported(store, measured_lines[:5]) == {"epyc": 2}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["large strings", "one more", "no line", "a null", "two of a name"])
def test_a_recorder_goes_on_over_a_store_that_was_rewritten(url, store, measured_lines, how):
    """The recorder stopped for ever at the 32nd batch, which compacts."""
    file = fill(store, measured_lines[:3])
    rewrite(file, how)
    recorder = Recorder(url, store, "one")
    with redis.Redis.from_url(url, decode_responses=True) as client, contextlib.closing(recorder):
        client.delete(STREAM)
        for n in range(40):
            line = measured_lines[3 + n]
            client.xadd(STREAM, Entry(str(n), line, "w", "epyc", "v")._asdict())
            assert len(recorder.step().records) == 1
        assert client.xlen(STREAM) == 0
    assert stored(store).total() == 40 + (3 if how in REWRITTEN else 0)
    assert len(list(file.parent.glob("part-*.parquet"))) < 32
    assert len(list(file.parent.glob("*.damaged"))) == (how in UNUSABLE)


def test_a_column_that_is_new_reads_as_nulls_in_older_files(store, measured_lines):
    newer = SCHEMA.append(pa.field("worker", pa.string()))
    with contextlib.closing(StoredFile(fill(store, measured_lines[:3]), "epyc", newer)) as file:
        (batch,) = file.batches(["line", "worker"])
    assert batch.to_pydict() == {"line": [1] * 3, "worker": [None] * 3}
    with pytest.raises(DamagedRecords, match="it lacks the column 'worker'"):
        StoredFile(file.path, "epyc", SCHEMA.append(pa.field("worker", pa.string(), nullable=False)))


def test_the_columns_that_a_file_must_have_are_those_of_the_first_release():
    """A new column that is not nullable would make every older file unusable."""
    needed = (
        "id platform target workload_key primitives costs error_no all_cost timestamp log_version source line"
    )
    assert " ".join(field.name for field in SCHEMA if not field.nullable) == needed


def flipped(contents):
    """Return a file with bits of its rows changed: in all pages, not in the footer."""
    end = len(contents) - 8 - int.from_bytes(contents[-8:-4], "little")
    changed = bytearray(contents)
    for place in range(40, end, 40):
        changed[place] ^= 1
    return bytes(changed)


def wrong_count(contents):
    """Return a file whose footer states more rows than it has."""
    table = pq.read_table(pa.BufferReader(contents))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    found = sink.getvalue().to_pybytes()
    assert found.count(bytes([0x16, 2 * len(table)])) >= 2  # i64 fields of the footer
    at = found.rindex(b"ARROW:schema")
    place = found.rindex(bytes([0x16, 2 * len(table)]), 0, at)
    return found[:place] + bytes([0x16, 2 * len(table) + 2]) + found[place + 2 :]


#: Contents of unreadable files.
DAMAGED = {
    "empty": lambda contents: b"",
    "cut": lambda contents: contents[: len(contents) // 2],
    "text": lambda contents: b"no Parquet at all",
    "zeros": lambda contents: contents[:4] + bytes(300) + contents[304:],
    "bits": flipped,
    "footer": wrong_count,
}


@pytest.fixture(params=[*DAMAGED, "folder", "link", "pipe"])
def damaged(request, store, measured_lines):
    """A store of three platforms, and the only file of one of them, which is unusable."""
    for platform, lines in (
        ("aaa", measured_lines[:48]),
        ("mmm", measured_lines[48:54]),
        ("zzz", measured_lines[:48]),
    ):
        fill(store, lines, platform)
    file = next((store.folder / "platform=mmm").iterdir())
    if request.param in DAMAGED:
        file.write_bytes(DAMAGED[request.param](file.read_bytes()))
    else:
        file.unlink()
        make = {"folder": Path.mkdir, "link": lambda p: p.symlink_to("nowhere"), "pipe": os.mkfifo}
        make[request.param](file)
    return file


def test_a_platform_without_a_usable_file_is_passed_over_by_all_who_read(store, damaged, caplog, capsys):
    assert main(["records", "show", str(store.folder)]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:]] == [
        ["aaa", "48"],
        ["zzz", "48"],
    ]
    assert [line for line in caplog.messages if str(damaged) in line] == [
        f"{line}" for line in caplog.messages if line.endswith(f"it is set aside as {damaged.name}.damaged")
    ]
    assert len(caplog.messages) == 1
    assert store.platforms == ("aaa", "zzz")
    assert main(["records", "show", str(store.folder)]) == 0
    assert len(caplog.messages) == 1


def test_each_way_to_read_meets_a_damaged_file_first_and_goes_on(store, damaged, caplog):
    copy = store.folder.parent / "copy"
    ways = {
        "records": lambda s: {platform for platform, _ in stored_records(s)},
        "sources": lambda s: {"aaa", "zzz"} if set(stored_sources(s)) else set(),
        "counts": lambda s: set(s.counts()),
        "named": lambda s: {platform for platform, _ in stored_records(s, ["mmm", "aaa", "zzz"])},
    }
    for name, way in ways.items():
        shutil.rmtree(copy, ignore_errors=True)
        _copied(store.folder, copy)
        found = way(RecordStore(copy))
        # The footer is intact although rows are damaged, and `counts` reads only the footer.
        is_in_rows = damaged.is_file() and _has_footer(damaged)
        assert found == {"aaa", "zzz"} | ({"mmm"} if name == "counts" and is_in_rows else set()), name


def _has_footer(file):
    try:
        StoredFile(file, "mmm").close()
    except DamagedRecords:
        return False
    return True


def _copied(source, target):
    """Copy a store with its links, folders and pipes."""
    for path in sorted(source.rglob("*")):
        there = target / path.relative_to(source)
        there.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            there.symlink_to(os.readlink(path))
        elif path.is_dir():
            there.mkdir(parents=True, exist_ok=True)
        elif path.is_fifo():
            os.mkfifo(there)
        else:
            shutil.copy(path, there)


def test_a_store_that_cannot_be_written_is_read_all_the_same(store, damaged, monkeypatch, caplog, capsys):
    with read_only(store, monkeypatch):
        for _ in range(2):
            assert {platform for platform, _ in stored_records(store)} == {"aaa", "zzz"}
    assert len(caplog.messages) == 1  # logged once
    assert caplog.messages[0].startswith(f"{damaged} is damaged: ")
    assert caplog.messages[0].endswith("it is skipped, since it cannot be renamed: Read-only file system")
    assert damaged.is_symlink() or damaged.exists()


def test_an_import_into_a_store_with_a_damaged_file_sets_it_aside(store, damaged, measured_lines):
    assert imported(store, measured_lines[:60], "mmm") == {"mmm": 60}
    names = {path.name for path in damaged.parent.iterdir()}
    assert names == {"records.parquet", f"{damaged.name}.damaged"}


@pytest.mark.slow
@pytest.mark.parametrize("damaged", ["empty", "bits"], indirect=True)
def test_other_platforms_are_evaluated_and_trained_on(store, damaged, tmp_path, capsys, monkeypatch):
    from tlp_service.families.lookup import preset_named

    small = {"width": 16, "blocks": 1, "members": 2, "task_hidden": 8}
    monkeypatch.setattr(type(preset_named("loopnest")), "architecture", small)
    store.append([rows_of(line_set, p) for p, line_set in (("aaa", _lines()), ("zzz", _lines()))])
    damage = damaged.parent
    assert main(["train", "--records", str(store.folder), "--out", str(tmp_path / "v"), "--epochs", "1"]) == 0
    assert [p.name for p in damage.iterdir()] == [f"{damaged.name}.damaged"]
    os.rename(damage / f"{damaged.name}.damaged", damaged)
    assert main(["evaluate", str(store.folder)]) == 0
    assert "\naaa: " in capsys.readouterr().out


def _lines():
    return (Path(__file__).parents[1] / "data" / "measured.json").read_text().splitlines()


def test_nothing_that_can_be_shown_is_no_success(store, measured_lines, monkeypatch, capsys):
    fill(store, measured_lines[:2]).write_bytes(b"")
    with read_only(store, monkeypatch):
        assert main(["records", "show", str(store.folder)]) == 1
        assert capsys.readouterr().err == "tlp: no file of records can be read\n"


def test_files_of_other_programs_are_no_records(store, measured_lines, caplog):
    fill(store, measured_lines[:3])
    for name in (
        "._records.parquet",
        "._part-1.parquet",
        ".DS_Store",
        "note.parquet",
        "records.parquet.damaged",
    ):
        (store.folder / "platform=epyc" / name).write_bytes(b"\0\5\026\7")
    for platform in ("mac", "none"):
        (store.folder / f"platform={platform}").mkdir()
    (store.folder / "platform=mac" / "._records.parquet").write_bytes(b"\0\5\026\7")
    assert store.platforms == ("epyc",)
    assert store.counts() == {"epyc": 3}
    store.compact()
    assert stored(store).total() == 3
    assert not caplog.records


def test_a_table_without_rows_is_a_platform_without_records(store, measured_lines, capsys):
    fill(store, measured_lines[:3])
    (store.folder / "platform=none").mkdir()
    pq.write_table(SCHEMA.empty_table(), store.folder / "platform=none" / "records.parquet")
    assert store.counts() == {"epyc": 3}
    assert {platform for platform, _ in stored_records(store)} == {"epyc"}
    assert main(["records", "show", str(store.folder)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert imported(store, measured_lines[:3], "none") == {"none": 3}


@pytest.mark.parametrize("name", ["a b", "épyc", "", "..", "-x", "x" * 200, "cafe\u0301"])
def test_a_folder_whose_name_is_that_of_no_platform_is_passed_over(store, measured_lines, name, caplog):
    file = fill(store, measured_lines[:3])
    odd = store.folder / f"platform={name}"
    shutil.copytree(file.parent, odd)
    assert store.platforms == store.platforms == ("epyc",)
    (line,) = caplog.messages
    assert line.startswith(f"{odd} is skipped: platform: ")
    assert line.endswith("; rename the folder")


def test_a_folder_that_was_renamed_is_the_platform_of_its_name(store, measured_lines):
    fill(store, measured_lines[:3]).parent.rename(store.folder / "platform=Milan")
    fill(store, measured_lines[:2], "milan")
    assert store.counts() == {"Milan": 3, "milan": 2}
    assert set(store.read("Milan", ["platform"])["platform"].to_pylist()) == {"Milan"}


def test_counts_open_only_what_is_new(store, measured_lines, monkeypatch):
    """A trainer counts every few seconds."""
    for platform in ("aaa", "zzz"):
        fill(store, measured_lines[:3], platform)
    assert store.counts() == {"aaa": 3, "zzz": 3}
    opened = []
    check = "tlp_service.records.stored_file._check_is_file"
    monkeypatch.setattr(check, opened.append)
    assert store.counts() == {"aaa": 3, "zzz": 3}
    assert opened == []
    new = fill(store, measured_lines[3:5], "zzz")
    assert store.counts() == {"aaa": 3, "zzz": 5}
    assert opened == [new]
    monkeypatch.undo()
    store.compact()
    assert store.counts() == {"aaa": 3, "zzz": 5}
    assert len(store._known_rows) == 2


def test_what_is_asked_for_wrongly_damages_nothing(store, measured_lines):
    file = fill(store, measured_lines[:3])
    with pytest.raises(KeyError):
        store.read("epyc", ["nothing"])
    assert file.exists()


def test_what_was_set_aside_before_is_kept(store, measured_lines):
    for n in range(3):
        imported(store, measured_lines[: n + 1])
        (store.folder / "platform=epyc" / "records.parquet").write_bytes(b"%d" % n)
        assert store.counts() == {}
    names = ["records.parquet.damaged", "records.parquet.damaged-2", "records.parquet.damaged-3"]
    folder = store.folder / "platform=epyc"
    assert sorted(path.name for path in folder.iterdir()) == names
    assert [(folder / name).read_bytes() for name in names] == [b"0", b"1", b"2"]


_AS_NOBODY = """
import os, sys, logging
from pathlib import Path
from tlp_service.records.reader import stored_records
from tlp_service.records.store import RecordStore
logging.basicConfig(format="%(levelname)s %(message)s")
stores = [RecordStore(Path(sys.argv[1])) for _ in range(2)]
{p for p, _ in stored_records(stores[0])}  # imports modules now, since nobody may not read them later
os.setegid(65534); os.seteuid(65534)
print(sorted(stores[1].counts().items()), sorted({p for p, _ in stored_records(stores[1])}))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_may_not_be_read_keeps_no_other_platform_from_it(tmp_path, measured_lines, what):
    # Its parents must be accessible to nobody.
    folder = Path("/var/tmp") / f"tlp-test-{os.getpid()}-{what}"
    try:
        store = RecordStore.create(folder)
        file = fill(store, measured_lines[:3], "aaa")
        fill(store, measured_lines[:3], "zzz")
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)
        (file.parent if what == "folder" else file).chmod(0)
        # Nobody may not write coverage data, and coverage would say so on stderr.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")}
        done = subprocess.run(
            [sys.executable, "-c", _AS_NOBODY, str(folder)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
    finally:
        shutil.rmtree(folder)
    assert done.stdout == "[('zzz', 3)] ['zzz']\n"
    (line,) = done.stderr.splitlines()
    denied = file.parent if what == "folder" else file
    assert line == f"WARNING {denied} cannot be read and is skipped: Permission denied"


def test_a_disk_that_fails_for_a_file_loses_nothing_when_others_are_merged(
    store, measured_lines, monkeypatch
):
    """A file that cannot be read now must not be overwritten: it may be readable later."""
    monkeypatch.setattr(store_module, "_MAX_PARTS", 3)
    imported(store, measured_lines[:5])
    old = store.folder / "platform=epyc" / "records.parquet"
    check = "tlp_service.records.stored_file._check_is_file"
    with monkeypatch.context() as patch:
        patch.setattr(
            check,
            lambda path: (_ for _ in ()).throw(OSError(5, "Input/output error")) if path == old else None,
        )
        for n in range(5, 12):
            fill(store, measured_lines[n : n + 1])
        assert imported(store, measured_lines[12:15]) == {"epyc": 3}
        assert stored(store).total() == 10
    assert stored(store).total() == 15


def test_a_compaction_that_fails_keeps_no_batch_from_the_store(store, measured_lines, monkeypatch, caplog):
    monkeypatch.setattr(store_module, "_MAX_PARTS", 3)
    tries = []

    def full(*arguments):
        tries.append(arguments)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "merge", full)
        for n in range(8):
            fill(store, measured_lines[n : n + 1])
    assert len(tries) == 2  # at three files and at six
    assert "platform=epyc is not compacted: [Errno 28] No space left on device" in caplog.text
    assert stored(store).total() == 8
    fill(store, measured_lines[8:9])
    assert len(list((store.folder / "platform=epyc").iterdir())) < 3
    assert stored(store).total() == 9


def test_a_platform_on_another_disk_is_a_link(store, measured_lines, tmp_path, monkeypatch):
    """A temporary file on the disk of the store cannot be renamed to a platform folder on another disk."""
    (tmp_path / "disk").mkdir()
    (store.folder / "platform=epyc").symlink_to(tmp_path / "disk")
    replace = os.replace

    def on_one_disk(source, target):
        assert Path(source).resolve().is_relative_to(tmp_path / "disk") or "platform" not in str(target)
        replace(source, target)

    monkeypatch.setattr("os.replace", on_one_disk)
    fill(store, measured_lines[:3])
    assert imported(store, measured_lines[:5]) == {"epyc": 2}
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["records.parquet"]


def test_a_lock_that_is_a_folder_keeps_nobody_from_reading(store, measured_lines, caplog, capsys):
    fill(store, measured_lines[:3])
    fill(store, measured_lines[:3], "zzz").write_bytes(b"")
    (store.folder / "lock").unlink()
    (store.folder / "lock").mkdir()
    assert main(["records", "show", str(store.folder)]) == 0
    assert "cannot be renamed: Is a directory" in caplog.text
    log = store.folder.parent / "log.json"
    log.write_text(measured_lines[0])
    assert main(["records", "import", str(log), "--store", str(store.folder), "--platform", "epyc"]) == 1
    assert capsys.readouterr().err == f"tlp records: [Errno 21] Is a directory: '{store.folder / 'lock'}'\n"


@pytest.mark.parametrize(
    "contents",
    [
        *(b"", b"{", b"[]", b'"x"', b'{"form": 1}', b"\xff", b'{"form": 1, "seed": "x"}'),
        *(b'{"form": 1, "seed": null}', b'{"form": 1, "seed": 1e999}', b"[" * 100_000),
    ],
)
def test_a_damaged_note_of_a_store_is_one_line(store, contents, capsys):
    (store.folder / "store.json").write_bytes(contents)
    assert main(["records", "show", str(store.folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert 'store.json is damaged: expected {"form": 1, "seed": N}; write it again' in line


def test_a_note_that_an_editor_saved_with_a_byte_order_mark_is_read(store):
    note = store.folder / "store.json"
    note.write_bytes(b"\xef\xbb\xbf" + note.read_bytes().replace(b"\n", b"\r\n"))
    assert RecordStore(store.folder).seed == 4


def test_a_note_that_is_a_folder_is_named(store):
    (store.folder / "store.json").unlink()
    (store.folder / "store.json").mkdir()
    with pytest.raises(BadRecords, match=r"store.json cannot be read: Is a directory"):
        RecordStore(store.folder)


@pytest.mark.parametrize("before", [b"{", b"[]\n", b"\xff\xfe\n", b'{"line": 1}\n', b"\0" * 50, b"null\n"])
def test_a_damaged_quarantine_keeps_nothing_from_the_store(store, measured_lines, before, caplog):
    """The quarantine is written after the records, so its damage must not fail the import."""
    path = store.folder / "quarantine.jsonl"
    other = json.dumps({"source": "other.json", "line": 7, "reason": "not JSON"})
    path.write_bytes(other.encode() + b"\n" + before)
    assert imported(store, [measured_lines[0], "{"]) == {"epyc": 1}
    notes = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(Path(n["source"]).name, n["line"]) for n in notes] == [("other.json", 7), ("log.json", 2)]
    assert caplog.messages == [f"{path}: 1 damaged lines are dropped"]


def test_a_column_chunk_whose_metadata_is_damaged_ends_no_process(store, measured_lines):
    """Its size statistics contradict the schema. Where pyarrow is asked for them, C++ ends the process."""
    fill(store, measured_lines[:3], "sound")
    (store.folder / "platform=epyc").mkdir()
    damaged = Path(__file__).parents[1] / "data" / "damaged_column_chunk.parquet"
    shutil.copy(damaged, store.folder / "platform=epyc" / "records.parquet")
    done = subprocess.run(
        [sys.executable, "-m", "tlp_service", "records", "show", str(store.folder)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\nsound " in done.stdout
    assert len(list(stored_records(store, ["sound"]))) == 3
