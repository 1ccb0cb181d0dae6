"""The record store: a folder of Parquet files by platform, with a note of what it is.

::

    STORE/
    ├── store.json                       form, and the seed of its splits
    ├── platform=v100/records.parquet    one row a record, see `schema`
    ├── platform=v100/part-….parquet     rows that came since, in batches, until they are compacted
    ├── quarantine.jsonl                 lines that are no records: where they stand, and why
    └── lock                             of the process that writes

A file is written aside and then renamed, so a reader or a crash finds all of it or nothing. A row may stand in two files, after
a crash or a batch that came twice; it is read once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from tlp_client.logs import RefusedLine
from tlp_service.errors import BadRecords, DamagedRecords
from tlp_service.records.parquet_files import is_first, read_file, replace_file, rows_of, sync, write_file

log = logging.getLogger(__name__)

T = TypeVar("T")

FORM = 1
NOTE, QUARANTINE, RECORDS, LOCK = "store.json", "quarantine.jsonl", "records.parquet", "lock"
_PART = "part-*.parquet"
#: Files of a platform, beside that of its first records, at which the newest are made one.
_MOST_PARTS = 32
#: Begin of the names of folders on the way in, and the age in seconds at which one is nobody's any more.
_INCOMING, _LEFT_S = ".incoming-", 86_400
#: Times that a platform's files are looked for, should they be compacted meanwhile.
_READ_TRIES = 10


class RecordStore:
    """A record store on disk. One process writes at a time, others wait; any number read.

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
        folder.mkdir(parents=True, exist_ok=True)
        # Looked for in this order: what another maker brings in (recorder and trainer begin at once) is there after its note.
        strangers = [path.name for path in folder.iterdir() if not _is_own(path.name)]
        if strangers and not note.exists():
            raise BadRecords(f"{folder} is neither a record store nor empty")
        if not note.exists():
            with _alone_in(folder):
                if not note.exists():
                    replace_file(note, json.dumps({"form": FORM, "seed": seed}).encode() + b"\n")
        return cls(folder)

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platforms that have records, sorted."""
        files = self.folder.glob("platform=*/*.parquet")
        return tuple(sorted({path.parent.name.removeprefix("platform=") for path in files}))

    def read(self, platform: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the records of a platform, or some columns of them. A damaged file is set aside, so the others can be read.

        Raises
        ------
        FileNotFoundError
            If the platform has no records.
        OSError
            If a file is damaged and the store is not to be written.
        """
        return self._without_damaged(platform, lambda name: self._read(name, self._files(name), columns))

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each platform; those that stand in two files until they are compacted count twice."""
        counts = {platform: self._without_damaged(platform, self._count) for platform in self.platforms}
        return {platform: count for platform, count in counts.items() if count}

    def _count(self, platform: str) -> int:
        return sum(map(rows_of, self._files(platform)))

    def _without_damaged(self, platform: str, look: Callable[[str], T], is_writing: bool = False) -> T:
        """Return what a look at a platform's files gives, without those that are damaged."""
        try:
            return _retried(lambda: look(platform))
        except DamagedRecords:
            with contextlib.nullcontext() if is_writing else self._writing():
                self._set_damaged_aside(platform)
            return _retried(lambda: look(platform))

    def _read(self, platform: str, files: Sequence[Path], columns: Sequence[str] | None) -> pa.Table:
        if not files:
            raise FileNotFoundError(self._file(platform))
        if len(files) == 1:
            return read_file(files[0], columns)
        wanted = None if columns is None else list(dict.fromkeys(["id", *columns]))
        rows = pa.concat_tables(read_file(file, wanted) for file in files)
        rows = rows.filter(is_first(rows.column("id")))
        return rows if columns is None else rows.select(list(columns))

    def _files(self, platform: str) -> list[Path]:
        """Return the files of a platform, those of its oldest records first."""
        parts = sorted(self._file(platform).parent.glob(_PART))
        return [file for file in (self._file(platform),) if file.exists()] + parts

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Wait until no other process writes, and keep others from it."""
        with _alone_in(self.folder):
            for left in self.folder.glob(f"{_INCOMING}*"):  # by a process that was killed
                if time.time() - left.stat().st_mtime > _LEFT_S:
                    shutil.rmtree(left, ignore_errors=True)
            yield

    def append(self, batches: Iterable[pa.Table]) -> None:
        """Add rows of one platform each, and return when they are on disk. A row whose id is there already is read once."""
        with self._writing():
            for batch in batches:
                rows = batch.filter(is_first(batch.column("id")))
                platform = rows["platform"][0].as_py()
                folder = self._file(platform).parent
                if not folder.exists():
                    folder.mkdir()
                    sync(self.folder)
                with self.incoming() as scratch:
                    aside = scratch / RECORDS
                    write_file(rows, aside)
                    os.replace(aside, folder / f"part-{time.time_ns():020}-{secrets.token_hex(4)}.parquet")
                sync(folder)
                if len(list(folder.glob(_PART))) >= _MOST_PARTS:
                    with self.incoming() as scratch:
                        self._merge(platform, self._newest, (), scratch)

    def compact(self) -> None:
        """Make the files of each platform one."""
        with self._writing(), self.incoming() as folder:
            for platform in self.platforms:
                if self._files(platform) != [self._file(platform)]:
                    self._merge(platform, self._files, (), folder)

    def _newest(self, platform: str) -> list[Path]:
        """Return the newest files of a platform: half of the most that there are, and on to the first that has more rows than all of them.

        Made one, they leave ever larger files behind them, so a row is written anew about as often as the number of rows has doubled
        since it came, and not each time that a few more have come.
        """
        newest: list[Path] = []
        rows = 0
        for file in reversed(self._files(platform)):
            count = rows_of(file)
            if len(newest) >= _MOST_PARTS // 2 and count > rows:
                break
            newest.insert(0, file)
            rows += count
        return newest

    def _set_damaged_aside(self, platform: str) -> None:
        for file in self._files(platform):
            try:
                read_file(file)
            except DamagedRecords as error:
                aside = file.with_name(f"{file.name}.damaged")
                log.error("%s; it is set aside as %s", error, aside.name)
                os.replace(file, aside)

    @contextmanager
    def incoming(self) -> Iterator[Path]:
        """Return a folder for files on their way into the store; it is removed at the end."""
        folder = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=self.folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def take_in(self, folder: Path) -> dict[str, int]:
        """Add the rows of `write_rows` in a folder, each id once, and return how many are new, by platform."""
        parts: dict[str, list[pa.Table]] = defaultdict(list)
        for path in sorted(folder.glob("*.arrow")):
            with pa.memory_map(str(path)) as file:
                rows = pa.ipc.open_file(file).read_all()
            parts[rows["platform"][0].as_py()].append(rows)
        platforms = sorted(parts, key=lambda platform: -sum(map(len, parts[platform])))
        with (
            self._writing(),
            ThreadPoolExecutor(os.cpu_count()) as pool,
        ):  # pyarrow works without the interpreter
            added = pool.map(
                lambda platform: self._merge(platform, self._files, parts[platform], folder),
                platforms,
            )
            return dict(zip(platforms, added, strict=True))

    def _merge(
        self,
        platform: str,
        choose: Callable[[str], list[Path]],
        parts: Sequence[pa.Table],
        folder: Path,
    ) -> int:
        """Make one file of a platform's newest files, or all, and further rows; return how many of those are new.

        What cannot be read is set aside.
        """

        def chosen(name: str) -> tuple[list[Path], list[pa.Table]]:
            files = choose(name)
            return files, [self._read(name, files, None)] if files else []

        files, known = self._without_damaged(platform, chosen, is_writing=True)
        if not known and not parts:
            return 0
        is_all = len(files) == len(self._files(platform))
        before = sum(map(len, known))
        rows = pa.concat_tables([*known, *parts])
        rows = rows.filter(is_first(rows.column("id")))
        self._file(platform).parent.mkdir(exist_ok=True)
        aside = folder / f"{platform}.merged"
        write_file(rows, aside)
        place = self._file(platform) if is_all else files[0]
        os.replace(aside, place)
        sync(place.parent)
        for file in files:
            if file != place:
                file.unlink()
        return len(rows) - before

    def quarantine(self, refused: Sequence[RefusedLine], sources: Collection[str]) -> None:
        """Note the lines of logs that are no records, in place of what was noted of these logs before.

        Parameters
        ----------
        refused : sequence of RefusedLine
            The lines.
        sources : collection of str
            All logs that were read. A line that was being written at an earlier import may be whole now.
        """
        path = self.folder / QUARANTINE
        before = path.read_text().splitlines() if path.exists() else []
        noted = [entry for entry in before if json.loads(entry)["source"] not in sources]
        noted += [
            json.dumps({"source": line.source, "line": line.number, "reason": line.reason})
            for line in refused
        ]
        if noted or before:
            replace_file(path, "".join(f"{entry}\n" for entry in dict.fromkeys(noted)).encode())

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


def _retried(look: Callable[[], T]) -> T:
    """Return what a look at a store's files gives, again if some were compacted since they were listed."""
    for _ in range(_READ_TRIES):
        with contextlib.suppress(FileNotFoundError):
            return look()
    return look()


def _is_own(name: str) -> bool:
    """Return whether a file may stand in a folder that is about to become a store: its maker's, who may have been killed."""
    return name == LOCK or name.startswith(f".{NOTE}.")


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process writes in a folder, and keep others from it."""
    with (folder / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
