"""The back ends of a registry, for tests that hold for each of them."""

import uuid
from pathlib import Path

from tlp_service.versions.folder_storage import FolderStorage
from tlp_service.versions.remote_storage import RemoteStorage
from tlp_service.versions.storages import storage_of

#: Back end -> the URL of a registry. All but the first are reached through fsspec.
BACK_ENDS = {
    "folder": lambda folder: f"{folder}/registry",
    "file": lambda folder: f"local://{folder}/registry",
    "memory": lambda folder: f"memory://{uuid.uuid4().hex}/models",
}


def write(url: str, name: str, content: bytes) -> None:
    """Write a file of a registry as another program would."""
    storage = storage_of(url)
    if isinstance(storage, FolderStorage):
        path = Path(url, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    else:
        assert isinstance(storage, RemoteStorage)
        storage._write(name, content)
