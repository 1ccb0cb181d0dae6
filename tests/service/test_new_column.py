"""A column that a stored file lacks reads as nulls.

A release that adds one needs no migration, and the release before reads its files.
"""

import contextlib
import json
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forms import IDS, PLATFORM, RELEASES
from serving import HANG_S

from tlp_client.records import RecordParser
from tlp_service.records.reader import stored_records
from tlp_service.records.schema import SCHEMA, Rows, Texts
from tlp_service.records.store import RecordStore
from tlp_service.records.stored_file import StoredFile

#: A program of a release with one column more, which is the second line of it.
LATER = """
import sys; from pathlib import Path; import pyarrow as pa; import tlp_service.records.schema as schema
schema.SCHEMA = schema.SCHEMA.append(pa.field("chosen", pa.string()))
from tlp_client.records import RecordParser
from tlp_service.records.store import RecordStore
store = RecordStore(Path(sys.argv[1]))
print(store.read(sys.argv[2], ["chosen"])["chosen"].to_pylist())
rows = schema.Rows(sys.argv[2], schema.Texts())
rows.add(RecordParser().parse(sys.argv[3]), sys.argv[3].encode(), "w", 1)
store.append([rows.table()])
store.compact()
print(store.read(sys.argv[2], ["chosen"])["chosen"].to_pylist())
"""


def rows_of(lines):
    rows, parser = Rows(PLATFORM, Texts()), RecordParser()
    for number, line in enumerate(lines):
        rows.add(parser.parse(line), line.encode(), "w", number)
    return rows.table()


def records_of(folder):
    return {repr(record) for _, record in stored_records(RecordStore(folder))}


@pytest.mark.parametrize("release", RELEASES, ids=IDS)
def test_a_column_is_added_by_one_line(release, tmp_path, measured_lines):
    folder = tmp_path / "store"
    shutil.copytree(release.folder / "store", folder)
    before = records_of(folder)
    arguments = [str(folder), PLATFORM, measured_lines[200]]
    done = subprocess.run(
        [sys.executable, "-c", LATER, *arguments], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str([None] * 3), str([None] * 4)]
    (file,) = folder.glob("platform=*/*.parquet")
    assert pq.read_schema(file).names[-1] == "chosen"
    # This release reads what the later one wrote.
    assert before < records_of(folder)
    assert len(records_of(folder)) == len(before) + 1


def test_the_release_before_dialects_reads_files_of_the_default_dialect(tmp_path, measured_lines):
    """Such a release looks columns up by name, and passes over those that it does not know."""
    store = RecordStore.create(tmp_path / "store")
    store.append([rows_of(measured_lines[:5])])
    store.compact()
    (path,) = store.folder.glob("platform=*/*.parquet")
    first = pa.schema([field for field in SCHEMA if field.name != "dialect"])
    assert len(first) == len(SCHEMA) - 1
    with contextlib.closing(StoredFile(path, PLATFORM, first)) as file:
        file.check()
        (batch,) = file.batches(first.names)
    assert batch.schema == first
    assert [json.loads(steps) for steps in batch.column("primitives").to_pylist()] == [
        json.loads(line)["i"][1][1] for line in measured_lines[:5]
    ]
    assert store.read(PLATFORM)["dialect"].to_pylist() == [None] * 5
