"""Faults of a registry or a version. Their texts name no path or URL, since clients read them over HTTP."""

from __future__ import annotations

import os
from pathlib import Path

#: Class of an error without errno, as fsspec's file systems raise them -> its description. The first match counts.
_CAUSES: dict[type[OSError], str] = {
    PermissionError: "permission denied",
    FileNotFoundError: "a file or folder is missing",
    TimeoutError: "it does not answer",
    ConnectionError: "it cannot be connected to",
}


def cause_of(error: OSError) -> str:
    """Return a description of a registry's fault for clients; the error itself is only logged."""
    if error.errno is not None:
        return os.strerror(error.errno)
    causes = (cause for kind, cause in _CAUSES.items() if isinstance(error, kind))
    return next(causes, "the log of this server tells why")


def without_folder(text: str, folder: Path) -> str:
    """Shorten the path of a version's folder in a text to its last part."""
    parents = {str(folder.parent), str(folder.parent.absolute())} - {".", "/"}
    for parent in sorted(parents, key=len, reverse=True):
        text = text.replace(f"{parent}/", "")
    return text
