"""Chooses the storage of a registry by its URL: a folder, or anything that fsspec reaches."""

from __future__ import annotations

import os
from pathlib import Path

from tlp_service.versions.folder_storage import FolderStorage
from tlp_service.versions.remote_storage import RemoteStorage
from tlp_service.versions.storage import RegistryStorage


def storage_of(url: str | os.PathLike[str]) -> RegistryStorage:
    """Return the storage for a path or URL; ``file://`` is a folder, too."""
    text = os.fspath(url)
    if text.startswith("file://"):
        return FolderStorage(Path(text.removeprefix("file://")))
    return RemoteStorage(text.rstrip("/")) if "://" in text else FolderStorage(Path(text))
