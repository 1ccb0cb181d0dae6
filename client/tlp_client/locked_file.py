"""A file that is locked by one process for as long as the process lives."""

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

#: Whether this system supports the locks.
IS_AVAILABLE = fcntl is not None


class LockedFile:
    """A file with a lock (flock), which is released when the file is closed or its process dies."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    @classmethod
    def create(cls, path: Path, content: bytes) -> LockedFile:
        """Create a file atomically: other processes never see it half written or without its lock."""
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
        """Lock a file whose owner is dead.

        Return None if it has an owner, belongs to another user, or is not a plain file.
        """
        try:
            return cls._lock(path, os.O_RDWR | os.O_APPEND)
        except OSError:
            return None

    @classmethod
    def take_or_make(cls, path: Path) -> LockedFile | None:
        """Lock a file that has no owner, or create it.

        Return None if another process owns the file or renames it at the same time.

        Raises
        ------
        OSError
            If the file cannot be opened or locked, or is not a plain file.
        """
        return cls._lock(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)

    @classmethod
    def _lock(cls, path: Path, flags: int) -> LockedFile | None:
        # Other users may write into the folder. A link could lead to another file of this user, and a pipe
        # would block for ever.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise OSError(errno.EINVAL, "expected a plain file without links; remove it", str(path))
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between the two calls above, an owner may have replaced or removed the file.
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
        """Yield the lines of the open file, even if its path leads to another file by now."""
        with os.fdopen(os.dup(self._descriptor), "rb") as lines:
            lines.seek(0)
            yield from lines

    def append(self, content: bytes) -> None:
        """Append all of the content, or nothing if the disk fails.

        Raises
        ------
        OSError
            If the write fails, for example because the disk is full.
        """
        # No fsync: written data survives the process. Only a power failure may lose the last seconds.
        rest = memoryview(content)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self.size)  # otherwise the next line would join a partial one
            raise
        self.size += len(content)

    def remove(self) -> None:
        """Delete the file."""
        # Delete before unlocking; otherwise another process would adopt the file.
        with suppress(OSError):
            os.unlink(self.path)
        self.close()

    def close(self) -> None:
        """Close the file and release its lock; a second call has no effect."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            # Close without unlocking: parent and forked child share the lock, and the other one may still
            # need it.
            os.close(descriptor)
