"""A registry that fsspec reaches by a URL, such as a bucket."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from tlp_service.errors import BadVersion
from tlp_service.versions.bounded_file import check_size
from tlp_service.versions.manifest import (
    MANIFEST,
    MAX_DOCUMENT_BYTES,
    MAX_NETWORK_BYTES,
    Manifest,
    parse_manifest,
)
from tlp_service.versions.storage import ACTIVE, RegistryStorage

#: Bytes that are copied at a time; most networks are smaller.
_BLOCK_BYTES = 16 << 20

#: How often a change is tried, if another writer overwrites it.
_MAX_TRIES = 5


class RemoteStorage(RegistryStorage):
    """A registry behind a URL that fsspec can open, such as a bucket.

    The credentials come from fsspec's own configuration.

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
            files = [PurePosixPath(str(file)) for file in self._fs.find(self._root, maxdepth=2)]
        folders = [file.parent for file in files if file.name == MANIFEST]
        root = PurePosixPath(self._root)
        return [folder.name for folder in folders if folder != root and not folder.name.startswith(".")]

    def read(self, name: str) -> bytes | None:
        """Return a file, or None."""
        with _reaching(self._url):
            try:
                content = bytes(self._fs.cat_file(self._at(name), end=MAX_DOCUMENT_BYTES + 1))
            except FileNotFoundError:
                return None
        check_size(name, len(content), MAX_DOCUMENT_BYTES)
        return content

    def change(self, make: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the document, and look whether that lasted."""
        with self._changing:
            for _ in range(_MAX_TRIES):
                made = make(self.read(ACTIVE))
                if made is None:
                    return
                self._write(ACTIVE, made)
                if self.read(ACTIVE) == made:
                    return
        raise OSError(
            f"gave up after {_MAX_TRIES} attempts: another writer keeps overwriting {self._url}/{ACTIVE}"
        )

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
                self._fs.rm_file(self._at(version))  # its target is not part of the registry
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
            if encoded is not None:  # without it, reading the version reports what is missing
                (folder / MANIFEST).write_bytes(encoded)
                for name in _files_of(encoded):
                    self._fetch(f"{version}/{name}", folder / name)
            yield folder

    def _fetch(self, name: str, target: Path) -> None:
        """Copy a network in blocks; a missing one is skipped.

        Raises
        ------
        BadVersion
            If it is larger than `MAX_NETWORK_BYTES`.
        """
        source = f"{self._url}/{name}"
        with _reaching(self._url), contextlib.suppress(FileNotFoundError):
            size = self._fs.size(self._at(name))
            if size is None:
                raise OSError(f"{source}: expected a store that tells the size of a file")
            check_size(name, size, MAX_NETWORK_BYTES)
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
    """Return the files that a manifest names; none if it is damaged, which reading the version reports."""
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
