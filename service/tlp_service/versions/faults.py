"""Faults of a registry or a version. Their texts name no path or URL, since clients read them over HTTP."""

from __future__ import annotations

import os
from pathlib import Path

#: Class of an error without a number, as fsspec's file systems raise them -> what it means; the first that fits.
_CAUSES: dict[type[OSError], str] = {
    PermissionError: "permission denied",
    FileNotFoundError: "a file or folder is missing",
    TimeoutError: "it does not answer",
    ConnectionError: "it cannot be connected to",
}


def cause_of(error: OSError) -> str:
    """Return what is wrong with a registry; the error itself is for the log."""
    if error.errno is not None:
        return os.strerror(error.errno)
    causes = (cause for kind, cause in _CAUSES.items() if isinstance(error, kind))
    return next(causes, "the log of this server tells why")


def without_folder(text: str, folder: Path) -> str:
    """Return a text about a version in which its folder is named by its last part only."""
    parents = {str(folder.parent), str(folder.parent.absolute())} - {".", "/"}
    for parent in sorted(parents, key=len, reverse=True):
        text = text.replace(f"{parent}/", "")
    return text
