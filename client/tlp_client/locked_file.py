"""A file that belongs to one process as long as that lives."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

#: whether this system has the locks
IS_AVAILABLE = fcntl is not None


class LockedFile:
    """A file and the lock on it (flock), which ends with the last descriptor: closed, or its process dead."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    @classmethod
    def create(cls, path: Path, content: bytes) -> LockedFile:
        """Make a file that nobody sees half written or without its lock."""
        aside = path.with_suffix(".tmp")
        file = cls(aside, os.open(aside, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            fcntl.flock(file._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.append(content)
            os.replace(aside, path)
        except BaseException:
            file.remove()
            raise
        file.path = path
        return file

    @classmethod
    def take(cls, path: Path) -> LockedFile | None:
        """Lock a file whose owner is dead; None if it has an owner, is another user's, or is no plain file."""
        try:
            return cls._lock(path, os.O_RDWR | os.O_APPEND)
        except OSError:
            return None

    @classmethod
    def take_or_make(cls, path: Path) -> LockedFile | None:
        """Lock a file without an owner, or make it; return None if another process owns it or renames it meanwhile.

        Raises
        ------
        OSError
            If it cannot be opened or locked, or is no plain file.
        """
        return cls._lock(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)

    @classmethod
    def _lock(cls, path: Path, flags: int) -> LockedFile | None:
        # Others may write into the folder: a link would lead to another file of this user, a pipe would wait for ever.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise OSError(errno.EINVAL, "expected a plain file without links; remove it", str(path))
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between the two calls above an owner may have replaced or removed it.
            if os.path.samestat(found, os.stat(path)):
                return cls(path, descriptor)
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the file, whatever its path leads to by now."""
        with os.fdopen(os.dup(self._descriptor), "rb") as lines:
            lines.seek(0)
            yield from lines

    def append(self, content: bytes) -> None:
        """Write at the end, all of it or, if the disk does not take that, nothing.

        Raises
        ------
        OSError
            If the disk is full, say.
        """
        # No fsync: what is written outlives the process. A machine that loses its power may lose the last seconds.
        rest = memoryview(content)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self.size)  # or the next line would be part of a half one
            raise
        self.size += len(content)

    def remove(self) -> None:
        """Delete the file."""
        # Before the lock goes, or another process would adopt it.
        with suppress(OSError):
            os.unlink(self.path)
        self.close()

    def close(self) -> None:
        """Let go of the file; closed once more, nothing happens."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            # Not unlocked: a child of fork shares the lock, and closing leaves it to the parent.
            os.close(descriptor)
