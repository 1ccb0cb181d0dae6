"""Importer and reader of the record store need only some megabytes, whatever records, logs and files contain."""

import gzip
import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored import rows_of

from tlp_client import logs as logs_module
from tlp_client.logs import MAX_LOG_LINE_BYTES, LogReader, lines_of
from tlp_client.records import MAX_COSTS, MAX_LINE_BYTES, RecordParser
from tlp_service.records import importer as importer_module
from tlp_service.records.importer import import_logs
from tlp_service.records.platform_table import OnePlatform
from tlp_service.records.reader import stored_records
from tlp_service.records.schema import REPEATED, SCHEMA
from tlp_service.records.stored_file import MAX_STEP_BYTES, value_bytes

pytestmark = pytest.mark.slow

#: Megabytes by which a reading or importing process may grow: a few steps, and what the allocators keep.
MAX_GROWTH_MB = 160

_GROWTH = """
import resource, sys
from pathlib import Path
from tlp_service.cli import main
from tlp_service.records.reader import stored_records, stored_sources
from tlp_service.records.store import RecordStore
store, command = RecordStore(Path(sys.argv[1])), sys.argv[2]
grown = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = grown()
if command == "read":
    found = sum(1 for _ in stored_records(store)), len(list(stored_sources(store)))
elif command == "compact":
    found = store.compact()
else:
    found = main(["records", "import", command, "--store", sys.argv[1], "--platform", "epyc", "--processes", "1"])
print(found)
print(grown() - before)
"""


def grown(store, command):
    """Return the result of a separate process, and the megabytes by which it grew."""
    done = subprocess.run(
        [sys.executable, "-c", _GROWTH, str(store.folder), str(command)],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    *_, found, megabytes = done.stdout.splitlines()
    return found, int(megabytes)


def table_of(lines, **columns):
    """Return rows of records, with the values of some columns replaced."""
    table = rows_of(lines, marks=[str(number) for number in range(len(lines))])
    for name, values in columns.items():
        place, field = SCHEMA.get_field_index(name), SCHEMA.field(name)
        table = table.set_column(place, field, pa.array(values, field.type))
    return table


def put(store, rows, **options):
    """Write a file as earlier releases did."""
    folder = store.folder / "platform=epyc"
    folder.mkdir(exist_ok=True)
    pq.write_table(rows, folder / "records.parquet", compression="zstd", use_dictionary=REPEATED, **options)


def wide(numbers):
    return json.dumps([["RE", 1, [7] * numbers]], separators=(",", ":"))


def test_records_of_megabytes_are_left_out_and_cost_no_more_than_their_text(store, measured_lines, caplog):
    """A list of numbers takes many times its text as Python objects: 34 kB in the store took 810 MB to read."""
    texts = [wide(4_000_000) if n % 10 == 0 else wide(n) for n in range(100)]
    put(store, table_of(measured_lines[:100], primitives=texts))
    assert next((store.folder / "platform=epyc").iterdir()).stat().st_size < 100_000
    assert len(list(stored_records(store))) == 90
    (message,) = caplog.messages
    assert message.startswith(
        "epyc: 10 records are left out: they cannot be read, or have more than 65536 bytes "
    )
    found, megabytes = grown(store, "read")
    assert found.startswith("(90, ")
    assert megabytes < MAX_GROWTH_MB
    assert grown(store, "compact")[1] < MAX_GROWTH_MB


def test_a_long_text_that_stands_in_each_row_is_not_held_for_all_of_them(store, measured_lines):
    """A workload key may have 64 kB, and a file contains it once, however many rows refer to it."""
    count = 5_000
    rows = table_of([measured_lines[0]] * count, workload_key=['["%s"]' % ("k" * 60_000)] * count)
    put(store, rows)
    del rows
    found, megabytes = grown(store, "read")
    assert found == f"({count}, 1)"
    assert megabytes < MAX_GROWTH_MB  # all rows together take 300
    assert grown(store, "compact")[1] < MAX_GROWTH_MB
    found, megabytes = grown(store, "read")
    assert (found, megabytes < MAX_GROWTH_MB) == (f"({count}, 1)", True)


@pytest.mark.parametrize(
    ("column", "within", "beyond"),
    [
        (
            "primitives",
            f'[["CI",1]{" " * (MAX_LINE_BYTES - 10)}]',
            f'[["CI",1]{" " * (MAX_LINE_BYTES - 9)}]',
        ),
        ("costs", [0.1] * MAX_COSTS, [0.1] * (MAX_COSTS + 1)),
        ("workload_key", "k" * (4 << 16), "k" * ((4 << 16) + 1)),
        ("target", "t" * (4 << 12), "t" * ((4 << 12) + 1)),
        ("primitives", "[]", '[["PPT",1]]'),
        ("primitives", '[["CI", 1], ["CI", 2]]', '[["CI", 1], ["CI"'),
        ("primitives", '[["CI",1]]', "[" * 60_000),
        ("primitives", '[["CI",1]]', ""),
        ("primitives", '[["CI",1]]', "null"),
    ],
)
def test_a_record_that_no_server_would_take_is_left_out_alone(
    store, measured_lines, column, within, beyond, caplog
):
    values = table_of(measured_lines[:3])[column].to_pylist()
    put(store, table_of(measured_lines[:3], **{column: [within, beyond, values[2]]}))
    assert [r.timestamp for _, r in stored_records(store)] == [
        RecordParser().parse(line).timestamp for line in (measured_lines[0], measured_lines[2])
    ]
    assert "epyc: 1 records are left out" in caplog.text


def test_each_step_of_reading_is_bounded_by_its_bytes(store, measured_lines):
    texts = [wide(300_000 if 40 <= n < 90 else 10) for n in range(200)]
    put(store, table_of(measured_lines[:200], primitives=texts), row_group_size=77)
    steps = [batch.column(0) for batch in store.batches("epyc", ["primitives"])]
    assert [text for step in steps for text in step.to_pylist()] == texts
    assert max(value_bytes(step).sum() for step in steps) <= MAX_STEP_BYTES
    assert len(steps) < 20


def test_rows_on_their_way_into_the_store_are_counted_by_their_bytes(
    store, measured_lines, tmp_path, monkeypatch
):
    """Rows of many platforms, whose number is not bounded."""
    monkeypatch.setattr(importer_module, "_MAX_HELD_BYTES", 20_000)
    written = []
    write = importer_module.write_rows
    monkeypatch.setattr(
        importer_module, "write_rows", lambda rows, path: (written.append(rows), write(rows, path))
    )
    log = tmp_path / "log.json"
    log.write_text("\n".join(measured_lines))

    def platform_of(path):
        return lambda record: f"p{len(record.primitives)}"

    _, added = import_logs([log], store, platform_of, processes=1)
    assert sum(added.values()) == sum(map(len, written)) == len(measured_lines)
    assert len(written) > len(log.read_bytes()) // 20_000
    assert max(rows.nbytes for rows in written) < 40_000


def test_a_line_without_an_end_is_one_refused_line(store, tmp_path, measured_lines):
    log = tmp_path / "log.json"
    with log.open("wb") as file:
        file.write(measured_lines[0].encode() + b"\n")
        file.seek(1 << 30, 1)
        file.write(b"\n" + measured_lines[1].encode() + b"\n")
    found, megabytes = grown(store, log)
    assert (found, megabytes < MAX_GROWTH_MB) == ("0", True)
    (note,) = (store.folder / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(note) == {
        "source": str(log),
        "line": 2,
        "reason": f"the line is too long: expected at most {MAX_LOG_LINE_BYTES} bytes",
    }
    assert store.counts() == {"epyc": 2}


@pytest.mark.parametrize("unit", [b"\0", b"\n", b"x\n"])
def test_a_gzip_bomb_is_read_to_a_bound_and_is_a_refused_line(
    store, tmp_path, measured_lines, unit, monkeypatch
):
    monkeypatch.setattr(logs_module, "MAX_SMALL_GZIP_BYTES", 1 << 16)
    log = tmp_path / "log.json.gz"
    log.write_bytes(gzip.compress(measured_lines[0].encode() + b"\n" + unit * ((1 << 20) // len(unit))))
    summary, added = import_logs([log], store, OnePlatform("epyc"), processes=1)
    assert added == {"epyc": 1}
    *_, last = summary.refused
    reasons = [
        json.loads(note)["reason"] for note in (store.folder / "quarantine.jsonl").read_text().splitlines()
    ]
    assert (
        "the rest cannot be read: it decompresses to more than 200 times its size" in reasons
        or last.lines > 1
    )
    assert len(reasons) <= logs_module.MAX_REFUSED_LINES + 1
    assert sum(summary.left_out.values()) < (1 << 18)


def test_a_log_that_compresses_as_well_as_any_real_one_is_read_whole(store, tmp_path, measured_lines):
    log = tmp_path / "log.json.gz"
    log.write_bytes(gzip.compress("\n".join(measured_lines * 40).encode()))
    summary, _ = import_logs([log], store, OnePlatform("epyc"), processes=1)
    assert (summary.platforms["epyc"], summary.refused) == (40 * len(measured_lines), [])


def test_a_log_of_nothing_but_damaged_lines_is_noted_by_its_first_and_their_number(store, tmp_path):
    log = tmp_path / "log.json"
    log.write_bytes(b"{\n" * 5000)
    summary, _ = import_logs([log], store, OnePlatform("epyc"), processes=1)
    notes = [json.loads(note) for note in (store.folder / "quarantine.jsonl").read_text().splitlines()]
    assert [note["line"] for note in notes] == [*range(1, 1001), 5000]
    assert notes[-1]["reason"] == "more lines are not records: 4000 of them"
    assert sum(summary.left_out.values()) == 5000


@pytest.mark.parametrize(
    "size", [MAX_LOG_LINE_BYTES - 1, MAX_LOG_LINE_BYTES, MAX_LOG_LINE_BYTES + 1, 3 * MAX_LOG_LINE_BYTES]
)
@pytest.mark.parametrize("end", [b"\n", b""])
def test_lines_around_the_longest(tmp_path, size, end):
    path = tmp_path / "log.json"
    path.write_bytes(b"x" * (size - 1) + end + b"x\nyy")
    with path.open("rb") as file:
        lines = list(lines_of(file))
    expected = [b"x" * (size - 1) + end, b"x\n", b"yy"] if end else [b"x" * size + b"\n", b"yy"]
    assert lines == [line[: MAX_LOG_LINE_BYTES + 1] for line in expected]
    reasons = [r.reason for _, r in LogReader().read_lines(lines)]
    is_read = len(expected[0]) <= MAX_LOG_LINE_BYTES  # the bound of a record is smaller still
    assert reasons[0].startswith("its line has" if is_read else "the line is too long")


def test_a_log_that_cannot_be_read_keeps_no_other_from_the_store(
    store, tmp_path, measured_lines, monkeypatch
):
    good, gone = tmp_path / "good.json", tmp_path / "gone.json"
    good.write_text(measured_lines[0] + "\n")
    summary, added = import_logs([gone, good], store, OnePlatform("epyc"), processes=1)
    assert added == {"epyc": 1}
    assert [str(line) for line in summary.refused] == [
        f"{gone}:1: the log cannot be read: No such file or directory"
    ]


def test_a_log_whose_name_is_not_utf_8_is_imported(store, tmp_path, measured_lines):
    folder = tmp_path / "logs"
    folder.mkdir()
    with open(bytes(folder) + b"/caf\xe9.json", "wb") as file:
        file.write(measured_lines[0].encode() + b"\n{\n")
    for new in (1, 0):
        _, added = import_logs(list(folder.iterdir()), store, OnePlatform("epyc"), processes=1)
        assert added == {"epyc": new}
    assert store.read("epyc", ["source"]).to_pylist() == [{"source": f"{folder}/caf\\xe9.json"}]
    (note,) = (store.folder / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(note)["source"] == f"{folder}/caf\\xe9.json"
