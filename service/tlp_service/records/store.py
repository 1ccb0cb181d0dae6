"""The record store: a folder of Parquet files by platform, with a note of what it is.

::

    STORE/
    ├── store.json                       form, and the seed of its splits
    ├── platform=v100/records.parquet    one row a record, see `schema`
    ├── platform=v100/part-….parquet     rows that came since, in batches, until they are compacted
    ├── quarantine.jsonl                 lines that are no records: where they stand, and why
    └── lock                             of the process that writes

A file is written under a temporary name and then renamed, so after a crash it is complete or missing. A row may be in
two files after a crash or a batch that was delivered twice; it is read once.

The name of a folder decides the platform of all rows in it, so renaming a folder renames a platform. A damaged
file is renamed to ``….damaged`` and logged. If the store is read-only, the file is skipped instead. In both
cases other files and platforms can still be read, and new rows can be written.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from tlp_client.errors import InvalidRequest
from tlp_client.logs import RefusedLine
from tlp_client.wire.fields import read_name
from tlp_service.errors import BadRecords, DamagedRecords, NotAllStored
from tlp_service.records.compaction import merge, new_part, newest
from tlp_service.records.parquet_files import is_first, replace_file, sync, write_file
from tlp_service.records.platform_folder import RECORDS, Choose, FileState, PlatformFolder
from tlp_service.records.quarantine import note_refused
from tlp_service.records.schema import SCHEMA
from tlp_service.records.store_lock import alone_in
from tlp_service.records.store_path import NOTE, check_store_path
from tlp_service.records.stored_file import StoredFile

log = logging.getLogger(__name__)

FORM = 1
_PLATFORM = "platform="
#: Number of files of a platform, without the compacted one, at which the newest are merged.
_MAX_PARTS = 32
#: Prefix of temporary folders, and the age in seconds at which one counts as left over.
_INCOMING, _LEFT_S = ".incoming-", 86_400
#: Maximum number of remembered warnings; a remembered warning is not logged again.
_MAX_WARNED = 1_000


class RecordStore:
    """A record store on disk. One process writes at a time, others wait; any number read.

    Parameters
    ----------
    folder : Path
        Folder of the store.
    max_wait_s : float
        Seconds for which a writer waits for another process that writes; then it raises OSError.

    Raises
    ------
    BadRecords
        If the folder holds something else, or a store of another form.
    """

    def __init__(self, folder: Path, max_wait_s: float = math.inf) -> None:
        self.folder = folder
        self._max_wait_s = max_wait_s
        self.seed = self._read_seed()
        self._warned: set[str] = set()
        # Rows of the existing files, since a trainer counts them every few seconds.
        self._known_rows: dict[FileState, int] = {}

    @classmethod
    def create(cls, folder: Path, seed: int = 0, max_wait_s: float = math.inf) -> RecordStore:
        """Open a store, made anew with this seed if there is none.

        Raises
        ------
        BadRecords
            If the folder is not empty and holds no store, or its name is not UTF-8.
        """
        note = folder / NOTE
        check_store_path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if not note.exists():
            with alone_in(folder, max_wait_s):
                if not note.exists():
                    replace_file(note, json.dumps({"form": FORM, "seed": seed}).encode() + b"\n")
        return cls(folder, max_wait_s)

    @property
    def platforms(self) -> tuple[str, ...]:
        """Sorted platforms that have files of records. The files may still turn out to be unreadable."""
        folders = self.folder.glob(f"{_PLATFORM}*")
        names = sorted(folder.name.removeprefix(_PLATFORM) for folder in folders)
        return tuple(filter(self._has_files, names))

    def read(self, platform: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the records of a platform, or some columns of them, all at once.

        Raises
        ------
        FileNotFoundError
            If no file of the platform can be read.
        """
        return self._folder(platform).read(SCHEMA.names if columns is None else columns)

    def batches(
        self, platform: str, columns: Sequence[str], choose: Choose | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield some columns of the records of a platform, in steps of bounded size.

        Parameters
        ----------
        platform : str
            Platform of the records. If none can be read, nothing is yielded.
        columns : sequence of str
            Names of the columns.
        choose : callable or None
            Gets the number of records, and returns the positions of the wanted ones in ascending order; None for all.
        """
        return self._folder(platform).batches(columns, choose)

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each platform. A row in two files counts twice until they are compacted."""
        counts = {platform: self._folder(platform).count(self._known_rows) for platform in self.platforms}
        self._known_rows = {state: rows for found in counts.values() for state, rows in found.items()}
        return {platform: total for platform, found in counts.items() if (total := sum(found.values()))}

    def append(self, batches: Iterable[pa.Table]) -> None:
        """Add tables of one platform each, and return when they are on disk; a row with a known id is read once.

        Raises
        ------
        NotAllStored
            If the rows of some platforms could not be written. All others are on disk then.
        OSError
            If the store as a whole cannot be written.
        """
        reasons: dict[str, Exception] = {}
        with self._writing():
            for batch in batches:
                platform = batch["platform"][0].as_py()
                try:
                    self._append(platform, batch)
                except (OSError, pa.ArrowException) as error:
                    reasons[platform] = error
        if reasons:
            raise NotAllStored(reasons)

    def _append(self, platform: str, batch: pa.Table) -> None:
        rows = batch.filter(is_first(batch.column("id")))
        folder = self._made_folder(platform)
        with self.incoming(folder.path) as scratch:
            aside = scratch / RECORDS
            write_file(rows.to_batches(), aside)
            os.replace(aside, new_part(folder.path))
        sync(folder.path)
        count = sum(path.name != RECORDS for path in folder.files())
        if count and count % _MAX_PARTS == 0:
            self._compact_newest(folder)

    def _compact_newest(self, folder: PlatformFolder) -> None:
        """Merge the newest files of a platform; a failure loses no row, and is retried some files later."""
        try:
            self._merge(folder, lambda files: newest(files, _MAX_PARTS // 2))
        except (OSError, pa.ArrowException) as error:
            log.warning("%s is not compacted: %s", folder.path, error)

    def compact(self) -> None:
        """Merge the files of each platform into one."""
        with self._writing():
            for platform in self.platforms:
                folder = self._folder(platform, is_writing=True)
                if folder.files() != [folder.path / RECORDS]:
                    self._merge(folder, list)

    @contextmanager
    def incoming(self, place: Path | None = None) -> Iterator[Path]:
        """Lend a temporary folder in the store or in a folder of it, which is removed at the end."""
        folder = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=place or self.folder))
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
        ):  # pyarrow releases the GIL
            added = pool.map(
                lambda platform: self._merge(self._made_folder(platform), list, parts[platform]),
                platforms,
            )
            return dict(zip(platforms, added, strict=True))

    def quarantine(self, refused: Sequence[RefusedLine], sources: Collection[str]) -> None:
        """Note the refused lines of logs, see `note_refused`."""
        note_refused(self.folder, refused, sources)

    def _merge(
        self,
        folder: PlatformFolder,
        choose: Callable[[list[StoredFile]], list[StoredFile]],
        parts: Sequence[pa.Table] = (),
    ) -> int:
        """Merge some files of a platform and further rows into one file; return how many of those rows are new."""
        # The temporary file is in the platform's folder, since that may be a link to another disk.
        with self.incoming(folder.path) as scratch:
            while True:
                try:
                    return merge(folder, choose, parts, scratch / RECORDS)
                except DamagedRecords as damage:
                    folder.set_aside(damage)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the writer lock of the store in the context."""
        with alone_in(self.folder, self._max_wait_s):
            for pattern in (f"{_INCOMING}*", f"{_PLATFORM}*/{_INCOMING}*"):
                for left in self.folder.glob(pattern):  # from a killed process
                    with contextlib.suppress(OSError):
                        if time.time() - left.stat().st_mtime > _LEFT_S:
                            shutil.rmtree(left, ignore_errors=True)
            yield

    def _folder(self, platform: str, is_writing: bool = False) -> PlatformFolder:
        lock = contextlib.nullcontext if is_writing else self._writing
        return PlatformFolder(self.folder / f"{_PLATFORM}{platform}", platform, lock, self._warn, is_writing)

    def _made_folder(self, platform: str) -> PlatformFolder:
        """Return the folder of a platform for writing; make it if it does not exist."""
        folder = self._folder(platform, is_writing=True)
        if not folder.path.exists():
            folder.path.mkdir()
            sync(self.folder)
        return folder

    def _has_files(self, platform: str) -> bool:
        folder = self._folder(platform)
        try:
            if not folder.files():
                return False
            read_name(platform, "platform")
        except OSError as error:
            self._warn(f"{folder.path} cannot be read and is skipped: {error.strerror}")
            return False
        except InvalidRequest as error:
            self._warn(f"{folder.path} is skipped: {error}; rename the folder")
            return False
        return True

    def _warn(self, message: str) -> None:
        """Log a warning once, since a trainer reads the store every few seconds."""
        if message in self._warned:
            return
        if len(self._warned) >= _MAX_WARNED:
            self._warned.clear()
        self._warned.add(message)
        log.warning("%s", message)

    def _read_seed(self) -> int:
        path = self.folder / NOTE
        try:
            note = json.loads(path.read_text("utf-8-sig"))
            form, seed = note["form"], int(note["seed"])
        except FileNotFoundError:
            raise BadRecords(f"{self.folder} is no record store: {NOTE} is missing") from None
        except OSError as error:
            raise BadRecords(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise BadRecords(
                f'{path} is damaged: expected {{"form": {FORM}, "seed": N}}; write it again, '
                "with the seed that `tlp records show` printed (0 unless --seed was given)"
            ) from None
        if form != FORM:
            raise BadRecords(f"{self.folder} is a record store of form {form!r}, this reads {FORM}")
        return seed
