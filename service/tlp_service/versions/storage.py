"""The interface between a registry and the storage of its files.

A version exists if its manifest does: the manifest is written after its files, and deleted before them.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from tlp_service.versions.manifest import Manifest

#: Name of the document with the active version and the history.
ACTIVE = "active.json"


class RegistryStorage(ABC):
    """Stores the files of a registry. Every method raises OSError if the storage can't be reached or written."""

    @abstractmethod
    def versions(self) -> list[str]:
        """Return the names of the versions that are there."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return a document, by its name below the registry; None if it is not there.

        Raises
        ------
        BadVersion
            If it is larger than any document of a registry.
        """

    @abstractmethod
    def change(self, make: Callable[[bytes | None], bytes | None]) -> None:
        """Replace ``active.json`` by what `make` makes of it, if that is not None, and lose no change of others."""

    @abstractmethod
    def put(self, source: Path, manifest: Manifest) -> None:
        """Copy a version from its folder."""

    @abstractmethod
    def remove(self, version: str) -> None:
        """Delete a version; a link is deleted without its target."""

    @abstractmethod
    def checkout(self, version: str) -> contextlib.AbstractContextManager[Path]:
        """Lend a folder with the files of a version; it need not outlast the context."""
