"""A registry in a folder of this machine or of a shared file system."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tlp_service.file_lock import lock_within
from tlp_service.versions.bounded_file import read_bounded
from tlp_service.versions.manifest import MANIFEST, MAX_DOCUMENT_BYTES, Manifest, write_version
from tlp_service.versions.storage import ACTIVE, RegistryStorage

#: Name of the lock file.
_LOCK = ".lock"

#: Seconds that a writer waits for the lock.
_LOCK_S = 60.0

#: Age in seconds at which a temporary file or folder counts as left over.
_ABANDONED_S = 86_400

#: Names of the temporary files of `write_version`, `FolderStorage.remove` and `FolderStorage.change`.
#: Other hidden files belong to other programs.
_ASIDE = re.compile(r"\.([A-Za-z0-9][A-Za-z0-9._-]*-[0-9a-f]{12}|active)-[a-z0-9_]{8}")


class FolderStorage(RegistryStorage):
    """A folder of a local or shared file system."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def versions(self) -> list[str]:
        """Return the names of the versions that are there."""
        return [p.parent.name for p in self._path.glob(f"*/{MANIFEST}") if not p.parent.name.startswith(".")]

    def read(self, name: str) -> bytes | None:
        """Return the contents of a file; None if it does not exist."""
        try:
            return read_bounded(self._path / name, MAX_DOCUMENT_BYTES, name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def change(self, make: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the document atomically under a lock, so that a reader gets either the old or the new one."""
        with self._locked():
            made = make(self.read(ACTIVE))
            if made is None:
                return
            with tempfile.NamedTemporaryFile(dir=self._path, prefix=".active-", delete=False) as aside:
                try:
                    aside.write(made)
                    aside.flush()
                    os.fsync(aside.fileno())
                    os.chmod(aside.name, 0o644)  # other users' servers read it
                    os.replace(aside.name, self._path / ACTIVE)
                except BaseException:
                    os.unlink(aside.name)
                    raise

    def put(self, source: Path, manifest: Manifest) -> None:
        """Copy a version to a temporary folder, then rename it."""
        with self._locked():
            target = self._path / manifest.version
            names = [name for network in manifest.networks for name in network.files]
            if target.is_symlink() and not target.exists():
                target.unlink()  # a broken link
            elif target.exists() and not (target / MANIFEST).exists():
                self._clear(target, names)
            write_version(self._path, manifest, {name: source / name for name in names})

    def remove(self, version: str) -> None:
        """Delete a version, and temporary files that killed writers have left."""
        path = self._path / version
        if path.is_symlink():
            path.unlink()  # its target is not part of the registry
        elif path.is_dir():
            aside = tempfile.mkdtemp(prefix=f".{version}-", dir=self._path)
            os.replace(path, aside)  # so that no half version is ever seen
            shutil.rmtree(aside)
        for left in self._path.iterdir():
            if _ASIDE.fullmatch(left.name) and time.time() - left.lstat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()

    def _clear(self, folder: Path, names: list[str]) -> None:
        """Remove the folder of a partly deleted version.

        Raises
        ------
        OSError
            If it contains anything but files of that version.
        """
        others = {path.name for path in folder.iterdir()} - set(names) if folder.is_dir() else {folder.name}
        if folder.is_symlink() or others:
            raise OSError(f"{folder}: expected a version or nothing, got other files; move them away")
        shutil.rmtree(folder)

    @contextlib.contextmanager
    def checkout(self, version: str) -> Iterator[Path]:
        """Lend the folder itself."""
        yield self._path / version

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.mkdir(parents=True, exist_ok=True)
        with (self._path / _LOCK).open("a") as lock:  # "w" would truncate the target of a link
            if not lock_within(lock, _LOCK_S):
                raise OSError(
                    f"{self._path / _LOCK}: gave up after {_LOCK_S:.0f} s, since another process holds the lock"
                )
            yield
