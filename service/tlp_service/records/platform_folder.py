"""The files of one platform of a record store: which they are, reading them, and setting aside those that are damaged."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, count
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tlp_service.errors import DamagedRecords
from tlp_service.records.parquet_files import is_first
from tlp_service.records.schema import SCHEMA
from tlp_service.records.stored_file import StoredFile

log = logging.getLogger(__name__)

T = TypeVar("T")

#: the number of records of a platform -> places of those that are wanted
Choose: TypeAlias = Callable[[int], npt.NDArray[np.int64]]

#: A file as it was when it was opened: path, inode, size, time of its last change.
FileState: TypeAlias = tuple[Path, int, int, int]

RECORDS = "records.parquet"
_PART = re.compile(r"part-.*\.parquet", re.DOTALL)
#: Faults of the process that looks, and not of the file that it looks at.
_OF_THIS_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
#: Times that a platform's files are looked for, should they be compacted meanwhile.
_READ_TRIES = 10


class PlatformFolder:
    """The folder of a platform.

    Parameters
    ----------
    path : Path
        The folder.
    platform : str
        Its platform.
    lock : callable
        Returns a context in which this process alone may write; one that does nothing where it does so already.
    warn : callable
        Gets each warning, the same one as often as it is found.
    is_writing : bool
        Whether its files are about to be replaced. What cannot be seen then is an error, for it would be overwritten.
    """

    def __init__(
        self,
        path: Path,
        platform: str,
        lock: Callable[[], AbstractContextManager[None]],
        warn: Callable[[str], None],
        is_writing: bool = False,
    ) -> None:
        self.path = path
        self.platform = platform
        self._lock = lock
        self._warn = warn
        self._is_writing = is_writing

    def files(self) -> list[Path]:
        """Return the files of records, the oldest first.

        This is what it means for a platform to have records. Other names are of other programs, such as the
        ``._records.parquet`` of a Mac.

        Raises
        ------
        OSError
            If the folder cannot be listed.
        """
        try:
            names = os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        parts = sorted(name for name in names if _PART.fullmatch(name))
        return [self.path / name for name in [RECORDS] * (RECORDS in names) + parts]

    @contextmanager
    def opened(self) -> Iterator[list[StoredFile]]:
        """Open the files that can be read, the oldest first; set aside what is damaged, and pass over what else cannot be read."""
        with contextlib.ExitStack() as stack:
            yield _retried(lambda: self._open_all(stack))

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return some columns of the records.

        Raises
        ------
        FileNotFoundError
            If there is no file that can be read.
        """
        with self.opened() as files:
            tables = [rows for file in files if (rows := self._rows(file, ["id", *columns])) is not None]
        if not tables:
            raise FileNotFoundError(f"{self.path}: no file of records that can be read")
        rows = pa.concat_tables(tables)
        return rows.filter(is_first(rows.column(0))).select(range(1, len(columns) + 1))

    def batches(self, columns: Sequence[str], choose: Choose | None) -> Iterator[pa.RecordBatch]:
        """Yield some columns of the records, a step at a time; nothing where there is no file that can be read."""
        with self.opened() as opened:
            known = [(file, ids) for file in opened if (ids := self._rows(file, ["id"])) is not None]
            if not known:
                return
            places = np.flatnonzero(is_first(pa.concat_tables(ids for _, ids in known).column(0)))
            ends = np.cumsum([len(ids) for _, ids in known])
            is_wanted = np.zeros(ends[-1], dtype=bool)
            is_wanted[places if choose is None else places[choose(len(places))]] = True
            for (file, _), mask in zip(known, np.split(is_wanted, ends[:-1]), strict=True):
                try:
                    yield from filtered(file.batches(columns), mask)
                except DamagedRecords as damage:
                    self.set_aside(damage)

    def count(self, known: Mapping[FileState, int]) -> dict[FileState, int]:
        """Return the number of rows of each file that can be read; of those that are known and unchanged without opening them."""
        return _retried(lambda: self._count(known))

    def set_aside(self, damage: DamagedRecords) -> None:
        """Give a damaged file a name under which nobody reads it, or warn that this cannot be done.

        Raises
        ------
        OSError
            If it cannot be done by one who is about to write.
        """
        path = damage.path
        try:
            with self._lock():
                if not self._is_damaged(path):  # replaced since it was looked at
                    return
                aside = _unused(path.with_name(f"{path.name}.damaged"))
                os.replace(path, aside)
                log.error("%s; it is set aside as %s", damage, aside.name)
        except OSError as error:
            if self._is_writing:
                raise
            self._warn(f"{damage}; it is passed over where it is, for it cannot be renamed: {error.strerror}")

    def _count(self, known: Mapping[FileState, int]) -> dict[FileState, int]:
        counts = {}
        for path in self._paths():
            found = path.lstat()
            state = (path, found.st_ino, found.st_size, found.st_mtime_ns)
            if state in known:
                counts[state] = known[state]
            elif (file := self._open(path)) is not None:
                with contextlib.closing(file):
                    counts[state] = file.rows
        return counts

    def _rows(self, file: StoredFile, columns: Sequence[str]) -> pa.Table | None:
        """Return some columns of a file, or None if it is damaged."""
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        try:
            return pa.Table.from_batches(file.batches(columns), schema)
        except DamagedRecords as damage:
            self.set_aside(damage)
            return None

    def _open_all(self, stack: contextlib.ExitStack) -> list[StoredFile]:
        with contextlib.ExitStack() as opened:
            found = (file for path in self._paths() if (file := self._open(path)) is not None)
            files = [opened.enter_context(contextlib.closing(file)) for file in found]
            stack.push(opened.pop_all())
        return files

    def _paths(self) -> list[Path]:
        """Return what `files` does, or nothing if the folder cannot be listed."""
        try:
            return self.files()
        except OSError as error:
            if self._is_writing:
                raise
            self._warn(f"{self.path} cannot be read and is passed over: {error.strerror}")
            return []

    def _open(self, path: Path) -> StoredFile | None:
        try:
            return StoredFile(path, self.platform)
        except DamagedRecords as damage:
            self.set_aside(damage)
        except FileNotFoundError:  # compacted since it was listed
            raise
        except OSError as error:
            if error.errno is None or error.errno in _OF_THIS_PROCESS:
                raise
            # Arrow's own text names the file once more.
            self._warn(f"{path} cannot be read and is passed over: {os.strerror(error.errno)}")
        return None

    def _is_damaged(self, path: Path) -> bool:
        try:
            with contextlib.closing(StoredFile(path, self.platform)) as file:
                file.check()
        except DamagedRecords:
            return True
        except FileNotFoundError:  # another process has set it aside
            return False
        return False


def filtered(batches: Iterable[pa.RecordBatch], is_wanted: npt.NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
    """Yield those rows of batches that are wanted."""
    begin = 0
    for batch in batches:
        mask = is_wanted[begin : begin + len(batch)]
        begin += len(batch)
        if mask.all():
            yield batch
        elif mask.any():
            yield batch.filter(pa.array(mask))


def _unused(path: Path) -> Path:
    """Return a path, with a number where something is there already: what was set aside before stays."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(p for p in chain([path], numbered) if not os.path.lexists(p))


def _retried(look: Callable[[], T]) -> T:
    """Return what a look at a platform's files gives, again if some were compacted since they were listed."""
    for _ in range(_READ_TRIES):
        with contextlib.suppress(FileNotFoundError):
            return look()
    return look()
