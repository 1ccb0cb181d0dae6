"""The record store: a folder of Parquet files by platform, with a note of what it is.

::

    STORE/
    ├── store.json                       form, and the seed of its splits
    ├── platform=v100/records.parquet    one row a record, see `schema`; one file a platform
    └── quarantine.jsonl                 lines that are no records: where they stand, and why

A file is replaced by a new one that was written aside, so a reader or a crash finds either the old or the new.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tlp_client.logs import RefusedLine
from tlp_service.errors import BadRecords

FORM = 1
NOTE, QUARANTINE, RECORDS = "store.json", "quarantine.jsonl", "records.parquet"


class RecordStore:
    """A record store on disk. One process writes at a time.

    Parameters
    ----------
    folder : Path
        Of the store.

    Raises
    ------
    BadRecords
        If the folder holds something else, or a store of another form.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        note = self._read_note()
        self.seed = int(note["seed"])

    @classmethod
    def create(cls, folder: Path, seed: int = 0) -> RecordStore:
        """Open a store, made anew with this seed if there is none.

        Raises
        ------
        BadRecords
            If the folder is not empty and holds no store.
        """
        note = folder / NOTE
        if not note.exists():
            if folder.exists() and any(folder.iterdir()):
                raise BadRecords(f"{folder} is neither a record store nor empty")
            folder.mkdir(parents=True, exist_ok=True)
            _replace(note, json.dumps({"form": FORM, "seed": seed}).encode() + b"\n")
        return cls(folder)

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platforms that have records, sorted."""
        folders = self.folder.glob(f"platform=*/{RECORDS}")
        return tuple(sorted(path.parent.name.removeprefix("platform=") for path in folders))

    def read(self, platform: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the records of a platform, or some columns of them."""
        wanted = None if columns is None else list(columns)
        return pq.read_table(self._file(platform), columns=wanted, partitioning=None)

    @contextmanager
    def incoming(self) -> Iterator[Path]:
        """Return a folder for Parquet files that `take_in` shall take; it is removed at the end."""
        folder = Path(tempfile.mkdtemp(prefix=".incoming-", dir=self.folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def take_in(self, folder: Path) -> dict[str, int]:
        """Add the rows of Parquet files, each id once, and return how many are new, by platform."""
        parts: dict[str, list[Path]] = defaultdict(list)
        for path in sorted(folder.glob("*.parquet")):
            parts[pq.ParquetFile(path).read_row_group(0, ["platform"])[0][0].as_py()].append(path)
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # pyarrow works without the interpreter
            platforms = sorted(parts)
            added = pool.map(lambda platform: self._merge(platform, parts[platform], folder), platforms)
            return dict(zip(platforms, added, strict=True))

    def _merge(self, platform: str, files: Sequence[Path], folder: Path) -> int:
        known = [self.read(platform)] if self._file(platform).exists() else []
        before = sum(map(len, known))
        rows = pa.concat_tables([*known, *(pq.read_table(file) for file in files)])
        rows = rows.take(_first_of_each(rows.column("id")))
        self._file(platform).parent.mkdir(exist_ok=True)
        aside = folder / f"{platform}.merged"
        pq.write_table(rows, aside, compression="zstd", row_group_size=20_000)
        os.replace(aside, self._file(platform))
        return len(rows) - before

    def quarantine(self, refused: Sequence[RefusedLine]) -> None:
        """Note lines that are no records; those that are noted already stay once."""
        path = self.folder / QUARANTINE
        noted = dict.fromkeys(path.read_text().splitlines()) if path.exists() else {}
        for line in refused:
            entry = {"source": line.source, "line": line.number, "reason": line.reason}
            noted[json.dumps(entry)] = None
        if noted:
            _replace(path, ("\n".join(noted) + "\n").encode())

    def _file(self, platform: str) -> Path:
        return self.folder / f"platform={platform}" / RECORDS

    def _read_note(self) -> dict[str, int]:
        path = self.folder / NOTE
        try:
            note = json.loads(path.read_text())
            form, _ = note["form"], note["seed"]
        except OSError:
            raise BadRecords(f"{self.folder} is no record store: {NOTE} is missing") from None
        except (ValueError, KeyError, TypeError):
            raise BadRecords(f"{path} is damaged") from None
        if form != FORM:
            raise BadRecords(f"{self.folder} is a record store of form {form!r}, this reads {FORM}")
        found: dict[str, int] = note
        return found


def is_store(path: Path) -> bool:
    """Return whether a path is a record store."""
    return (path / NOTE).is_file()


def _first_of_each(ids: pa.ChunkedArray) -> pa.Array:
    """Return the places at which an id stands for the first time, ascending."""
    table = pa.table({"id": ids, "place": pa.array(np.arange(len(ids)))})
    first = table.group_by("id", use_threads=False).aggregate([("place", "min")]).column("place_min")
    return first.combine_chunks().sort()


def _replace(path: Path, contents: bytes) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(contents)
    os.replace(aside, path)
