"""Reads untrusted files up to a maximum size."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tlp_service.errors import BadVersion

#: Bytes that are read and hashed at a time.
_BLOCK_BYTES = 1 << 20


def check_size(name: object, size: int, limit: int) -> None:
    """Raise `BadVersion` if a file has more than `limit` bytes, before it is read."""
    if size > limit:
        raise BadVersion(f"{name}: expected at most {limit} bytes, got {size}")


def read_bounded(path: Path, limit: int, name: object = None) -> bytes:
    """Return the content of a file that somebody else wrote.

    Raises
    ------
    BadVersion
        If it has more than `limit` bytes; names `name`, or the path.
    OSError
        If it can't be read, or is a pipe or device, which may never end.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path}: expected a regular file")
    with path.open("rb") as file:
        check_size(name or path, os.fstat(file.fileno()).st_size, limit)
        content = file.read(limit + 1)  # it may grow meanwhile
    check_size(name or path, len(content), limit)
    return content


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
