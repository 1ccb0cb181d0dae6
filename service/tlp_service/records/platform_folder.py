"""The files of one platform of a record store: lists them, reads them, and sets damaged ones aside."""

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

#: Function from the number of records of a platform to the positions of the wanted ones.
Choose: TypeAlias = Callable[[int], npt.NDArray[np.int64]]

#: Identifies the content of a file: path, inode, size, time of its last change.
FileState: TypeAlias = tuple[Path, int, int, int]

#: Name of the compacted file, and pattern of the names of the others.
RECORDS = "records.parquet"
_PART = re.compile(r"part-.*\.parquet", re.DOTALL)
#: Errors of this process, which say nothing about the file.
_OF_THIS_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
#: How often the files of a platform are listed again because they were compacted meanwhile.
_READ_TRIES = 10


class PlatformFolder:
    """The folder of a platform in a record store.

    Parameters
    ----------
    path : Path
        The folder.
    platform : str
        Name of the platform.
    lock : callable
        Returns a context with exclusive write access to the store; an empty one if the caller has it already.
    warn : callable
        Gets each warning, possibly several times.
    is_writing : bool
        Whether the caller is about to replace files. A file that cannot be read is then an error, since it would be
        overwritten.
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

        Only these files count as records. Other names belong to other programs, such as ``._records.parquet`` of macOS.

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
        """Open the readable files, the oldest first; set damaged ones aside, and skip others that cannot be read."""
        with contextlib.ExitStack() as stack:
            yield _retried(lambda: self._open_all(stack))

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return some columns of the records.

        Raises
        ------
        FileNotFoundError
            If no file can be read.
        """
        with self.opened() as files:
            tables = [rows for file in files if (rows := self._rows(file, ["id", *columns])) is not None]
        if not tables:
            raise FileNotFoundError(f"{self.path}: no file of records that can be read")
        rows = pa.concat_tables(tables)
        return rows.filter(is_first(rows.column(0))).select(range(1, len(columns) + 1))

    def batches(self, columns: Sequence[str], choose: Choose | None) -> Iterator[pa.RecordBatch]:
        """Yield some columns of the records in steps of bounded size; nothing if no file can be read."""
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
        """Return the number of rows of each readable file; known files that have not changed are not opened."""
        return _retried(lambda: self._count(known))

    def set_aside(self, damage: DamagedRecords) -> None:
        """Rename a damaged file so that nobody reads it, or warn that it cannot be renamed.

        Raises
        ------
        OSError
            If it cannot be renamed, and the caller is about to write.
        """
        path = damage.path
        try:
            with self._lock():
                if not self._is_damaged(path):  # another process has replaced it
                    return
                aside = _unused(path.with_name(f"{path.name}.damaged"))
                os.replace(path, aside)
                log.error("%s; it is set aside as %s", damage, aside.name)
        except OSError as error:
            if self._is_writing:
                raise
            self._warn(f"{damage}; it is skipped, since it cannot be renamed: {error.strerror}")

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
        """Return what `files` returns, or an empty list if the folder cannot be listed."""
        try:
            return self.files()
        except OSError as error:
            if self._is_writing:
                raise
            self._warn(f"{self.path} cannot be read and is skipped: {error.strerror}")
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
            # Arrow's own message would name the file again.
            self._warn(f"{path} cannot be read and is skipped: {os.strerror(error.errno)}")
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
    """Yield the wanted rows of batches."""
    begin = 0
    for batch in batches:
        mask = is_wanted[begin : begin + len(batch)]
        begin += len(batch)
        if mask.all():
            yield batch
        elif mask.any():
            yield batch.filter(pa.array(mask))


def _unused(path: Path) -> Path:
    """Return an unused path, with a number appended if needed, so that nothing is overwritten."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(p for p in chain([path], numbered) if not os.path.lexists(p))


def _retried(look: Callable[[], T]) -> T:
    """Return what `look` returns; call it again if files were compacted after it listed them."""
    for _ in range(_READ_TRIES):
        with contextlib.suppress(FileNotFoundError):
            return look()
    return look()
