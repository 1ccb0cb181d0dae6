"""Where a registry lies: a folder of this machine, or anything that fsspec reaches.

A version lies there once its manifest does: its files come first, and its manifest goes first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from tlp_service.errors import BadVersion
from tlp_service.versions.manifest import (
    MANIFEST,
    MAX_DOCUMENT_BYTES,
    MAX_NETWORK_BYTES,
    Manifest,
    check_size,
    parse_manifest,
    read_bounded,
    write_version,
)

ACTIVE = "active.json"

_LOCK = ".lock"

#: Seconds that a writer waits for another one, which may be stopped and never go on; and seconds between two tries.
_LOCK_S, _LOCK_PAUSE_S = 60.0, 0.02

#: Seconds after which what was written aside has been given up by its writer.
_ABANDONED_S = 86_400

#: What `write_version`, `Folder.remove` and `Folder.change` write aside. Other hidden files, such as ``.Trash-1000``, are not ours.
_ASIDE = re.compile(r"\.([A-Za-z0-9][A-Za-z0-9._-]*-[0-9a-f]{12}|active)-[a-z0-9_]{8}")

#: Bytes that are copied from a remote place at a time; most networks come in one piece.
_BLOCK_BYTES = 16 << 20

#: Times that a change is made anew because another one overwrote it.
_TRIES = 5


class Place(ABC):
    """Holds the files of a registry. Everything raises OSError where the place can't be reached or written."""

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
        """Delete a version, but nothing that it only links to."""

    @abstractmethod
    def checkout(self, version: str) -> contextlib.AbstractContextManager[Path]:
        """Lend a folder with the files of a version; it need not outlast the context."""


class Folder(Place):
    """A folder of a local or shared file system."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def versions(self) -> list[str]:
        """Return the names of the versions that are there."""
        return [p.parent.name for p in self._path.glob(f"*/{MANIFEST}") if not p.parent.name.startswith(".")]

    def read(self, name: str) -> bytes | None:
        """Return a file, or None."""
        try:
            return read_bounded(self._path / name, MAX_DOCUMENT_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def change(self, make: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the document under a lock, aside and then renamed: whoever reads sees the old or the new one."""
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
        """Copy a version aside, then rename it."""
        with self._locked():
            target = self._path / manifest.version
            names = [name for network in manifest.networks for name in network.files]
            if target.is_symlink() and not target.exists():
                target.unlink()  # it leads nowhere any more
            elif target.exists() and not (target / MANIFEST).exists():
                self._clear(target, names)
            write_version(self._path, manifest, {name: source / name for name in names})

    def remove(self, version: str) -> None:
        """Delete a version, and what writers that were killed left aside."""
        path = self._path / version
        if path.is_symlink():
            path.unlink()  # what it leads to is somebody else's
        elif path.is_dir():
            aside = tempfile.mkdtemp(prefix=f".{version}-", dir=self._path)
            os.replace(path, aside)  # so that no half version is ever seen
            shutil.rmtree(aside)
        for left in self._path.iterdir():
            if _ASIDE.fullmatch(left.name) and time.time() - left.lstat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()

    def _clear(self, folder: Path, names: list[str]) -> None:
        """Remove the folder of a version that was half deleted.

        Raises
        ------
        OSError
            If it holds anything else than files of that version.
        """
        others = {path.name for path in folder.iterdir()} - set(names) if folder.is_dir() else {folder.name}
        if folder.is_symlink() or others:
            raise OSError(f"{folder}: expected a version or nothing, found something else; move it away")
        shutil.rmtree(folder)

    @contextlib.contextmanager
    def checkout(self, version: str) -> Iterator[Path]:
        """Lend the folder itself."""
        yield self._path / version

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.mkdir(parents=True, exist_ok=True)
        with (self._path / _LOCK).open("a") as lock:  # "w" would empty what a link leads to
            until = time.monotonic() + _LOCK_S
            while not _lock(lock):
                if time.monotonic() > until:
                    raise OSError(f"{self._path / _LOCK}: another process has held it for {_LOCK_S:.0f} s")
                time.sleep(_LOCK_PAUSE_S)
            yield


def _lock(file: IO[str]) -> bool:
    """Return whether the lock on a file could be had."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Remote(Place):
    """What fsspec reaches by a URL, such as a bucket. Its credentials are those of fsspec's own configuration.

    No lock reaches everybody here. Who changes the document reads it again, and changes it anew where another
    has overwritten it; two at the very same moment may still lose one entry of the history, never the document.
    """

    def __init__(self, url: str) -> None:
        # Here, for a server on a folder need not import it.
        from fsspec.core import url_to_fs

        with _reaching(url):
            # Others write there, too.
            self._fs, self._root = url_to_fs(url, use_listings_cache=False)
        self._url = url
        self._changing = threading.Lock()

    def versions(self) -> list[str]:
        """Return the names of the versions that are there."""
        with _reaching(self._url):
            if not self._fs.exists(self._root):
                return []
            files = [str(file).rsplit("/", 2) for file in self._fs.find(self._root, maxdepth=2)]
        return [file[1] for file in files if file[-1] == MANIFEST and not file[1].startswith(".")]

    def read(self, name: str) -> bytes | None:
        """Return a file, or None."""
        with _reaching(self._url):
            try:
                content = bytes(self._fs.cat_file(self._at(name), end=MAX_DOCUMENT_BYTES + 1))
            except FileNotFoundError:
                return None
        check_size(f"{self._url}/{name}", len(content), MAX_DOCUMENT_BYTES)
        return content

    def change(self, make: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the document, and look whether that lasted."""
        with self._changing:
            for _ in range(_TRIES):
                made = make(self.read(ACTIVE))
                if made is None:
                    return
                self._write(ACTIVE, made)
                if self.read(ACTIVE) == made:
                    return
        raise OSError(f"{self._url}/{ACTIVE}: others change it all the time")

    def put(self, source: Path, manifest: Manifest) -> None:
        """Copy the files of a version, and its manifest last."""
        for network in manifest.networks:
            for name in network.files:
                self._write(f"{manifest.version}/{name}", (source / name).read_bytes())
        self._write(f"{manifest.version}/{MANIFEST}", (source / MANIFEST).read_bytes())

    def remove(self, version: str) -> None:
        """Delete a version, its manifest first."""
        with _reaching(self._url):
            entry = self._fs.info(self._at(version))
            if entry.get("islink") or entry.get("type") == "link":
                self._fs.rm_file(self._at(version))  # what it leads to is somebody else's
                return
            self._fs.rm_file(self._at(f"{version}/{MANIFEST}"))
            self._fs.rm(self._at(version), recursive=True)

    @contextlib.contextmanager
    def checkout(self, version: str) -> Iterator[Path]:
        """Lend a copy of the files that the manifest names."""
        with tempfile.TemporaryDirectory(prefix="tlp-version-") as scratch:
            folder = Path(scratch, version)
            folder.mkdir()
            encoded = self.read(f"{version}/{MANIFEST}")
            if encoded is not None:  # whoever reads the version says what is missing
                (folder / MANIFEST).write_bytes(encoded)
                for name in _files_of(encoded):
                    self._fetch(f"{version}/{name}", folder / name)
            yield folder

    def _fetch(self, name: str, target: Path) -> None:
        """Copy a network by blocks; one that is not there is not copied.

        Raises
        ------
        BadVersion
            If it is larger than any network may be.
        """
        source = f"{self._url}/{name}"
        with _reaching(self._url), contextlib.suppress(FileNotFoundError):
            size = self._fs.size(self._at(name))
            if size is None:
                raise OSError(f"{source}: expected a store that tells the size of a file")
            check_size(source, size, MAX_NETWORK_BYTES)
            with target.open("wb") as local:
                for start in range(0, size, _BLOCK_BYTES):
                    end = min(size, start + _BLOCK_BYTES)
                    local.write(self._fs.cat_file(self._at(name), start=start, end=end))

    def _write(self, name: str, content: bytes) -> None:
        with _reaching(self._url):
            self._fs.makedirs(self._at(name).rsplit("/", 1)[0], exist_ok=True)
            self._fs.pipe_file(self._at(name), content)

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"


def _files_of(encoded: bytes) -> list[str]:
    """Return the files that a manifest names, none if it is damaged, which whoever reads the version will say."""
    try:
        manifest = parse_manifest(encoded, MANIFEST)
    except BadVersion:
        return []
    return list(dict.fromkeys(name for network in manifest.networks for name in network.files))


@contextlib.contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Raise all that goes wrong as OSError; the exceptions of fsspec's file systems have no common base."""
    try:
        yield
    except (OSError, BadVersion):
        raise
    except Exception as error:
        raise OSError(f"{url}: {type(error).__name__}: {error}") from error


def place_of(url: str | os.PathLike[str]) -> Place:
    """Return the place that a path or URL names; ``file://`` is a folder, too."""
    text = os.fspath(url)
    if text.startswith("file://"):
        return Folder(Path(text.removeprefix("file://")))
    return Remote(text.rstrip("/")) if "://" in text else Folder(Path(text))
