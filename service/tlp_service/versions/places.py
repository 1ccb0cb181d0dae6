"""Where a registry lies: a folder of this machine, or anything that fsspec reaches."""

from __future__ import annotations

import os
from pathlib import Path

from tlp_service.versions.folder_place import Folder
from tlp_service.versions.place import ACTIVE, Place
from tlp_service.versions.remote_place import Remote

__all__ = ["ACTIVE", "Folder", "Place", "Remote", "place_of"]


def place_of(url: str | os.PathLike[str]) -> Place:
    """Return the place that a path or URL names; ``file://`` is a folder, too."""
    text = os.fspath(url)
    if text.startswith("file://"):
        return Folder(Path(text.removeprefix("file://")))
    return Remote(text.rstrip("/")) if "://" in text else Folder(Path(text))
