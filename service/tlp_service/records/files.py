"""Log files by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tlp_client.logs import LOG_SUFFIXES
from tlp_service.errors import BadRecords


def log_files(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the log files named, or found below `paths` by their ending (`LOG_SUFFIXES`), sorted.

    Raises
    ------
    BadRecords
        If a path does not exist.
    """
    for path in paths:
        if not path.exists():
            raise BadRecords(f"no such file or directory: {path}")
        if path.is_file():
            yield path
            continue
        for found in sorted(path.rglob("*")):
            if found.is_file() and found.name.endswith(LOG_SUFFIXES):
                yield found
