"""The registry: immutable versions beside each other, and which of them serves.

::

    models/
    ├── loopnest-98238b33f95c/      a version, as `tlp_service.versions.manifest` writes it
    ├── loopnest-5d0c1f6a2e44/
    └── active.json             see `tlp_service.versions.journal`

Servers follow ``active.json``. So a version begins to serve, everywhere, when that file is replaced.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from tlp_service.errors import BadVersion, UnknownName, VersionRefused
from tlp_service.versions.faults import without_folder
from tlp_service.versions.journal import Activation, Journal, Mark, now
from tlp_service.versions.manifest import MANIFEST, NAME, Manifest, parse_manifest, read_manifest
from tlp_service.versions.storage import ACTIVE
from tlp_service.versions.storages import storage_of

#: Number of versions that `Registry.prune` keeps: that many of the newest, and of those that served last.
KEEP = 10


@dataclass(frozen=True, slots=True)
class Held:
    """A version that the registry holds.

    Parameters
    ----------
    manifest : Manifest
        Manifest of the version.
    is_active : bool
        Whether the version serves.
    mark : Mark or None
        The mark that keeps the version from serving, if any.
    """

    manifest: Manifest
    is_active: bool
    mark: Mark | None


class Registry:
    """The versions in one storage. Every method raises OSError if the storage can't be reached.

    Parameters
    ----------
    url : path or str
        A folder, made if need be, or a URL that fsspec knows. ``tlp train --out`` may write into the folder.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self._storage = storage_of(url)

    def journal(self) -> Journal:
        """Return which version serves, which did, and which may not."""
        return Journal.decode(self._storage.read(ACTIVE))

    def versions(self) -> list[Held]:
        """Return what is held, newest first; a version whose manifest can't be read is left out."""
        journal = self.journal()
        held = []
        for name in self._storage.versions():
            with contextlib.suppress(BadVersion, UnknownName):
                held.append(_held(self.manifest(name), journal))
        return sorted(held, key=lambda h: (h.manifest.created, h.manifest.version), reverse=True)

    def names(self) -> frozenset[str]:
        """Return the names of what is held, and of what served and is deleted by now."""
        return frozenset([*self._storage.versions(), *(entry.version for entry in self.journal().history)])

    def held(self, version: str) -> Held:
        """Return one version.

        Raises
        ------
        UnknownName, BadVersion
            See `manifest`.
        """
        return _held(self.manifest(version), self.journal())

    def manifest(self, version: str) -> Manifest:
        """Return the manifest of a version; the digests of its files are not checked.

        Raises
        ------
        UnknownName
            If the registry doesn't hold it.
        BadVersion
            If the manifest is damaged, or is another version's.
        """
        # What a caller writes becomes a part of a path.
        encoded = self._storage.read(f"{version}/{MANIFEST}") if NAME.fullmatch(version) else None
        if encoded is None:
            raise UnknownName(f"version: the registry holds no {version[:140]!r}", code="unknown_version")
        manifest = parse_manifest(encoded, f"{version}/{MANIFEST}")
        if manifest.version != version:
            raise BadVersion(f"{version}/{MANIFEST}: it is the manifest of {manifest.version!r}")
        return manifest

    @contextlib.contextmanager
    def checkout(self, version: str) -> Iterator[Path]:
        """Lend a local folder with a version, to load it from within the context."""
        if not NAME.fullmatch(version):  # it becomes part of a path
            raise UnknownName(f"version: the registry holds no {version[:140]!r}", code="unknown_version")
        with self._storage.checkout(version) as folder:
            yield folder

    def publish(self, source: Path) -> str:
        """Copy a version into the registry and return its name. It does not serve yet.

        Raises
        ------
        BadVersion
            If the source is damaged, or the registry holds another manifest under its name.
        """
        manifest = read_manifest(source)
        try:
            present = self.manifest(manifest.version)
        except UnknownName:
            self._storage.put(source, manifest)
            return manifest.version
        # Compared in encoded form, since NaN is written as null.
        if msgspec.json.encode(present.networks) != msgspec.json.encode(manifest.networks):
            raise BadVersion(
                f"{manifest.version} exists in the registry, and its manifest states other platforms or figures "
                "for its networks; "
                "a version is immutable, so publish to another registry"
            )
        return manifest.version

    def activate(self, version: str, by: str, reason: str = "", force: bool = False) -> Journal:
        """Activate a version, so that all servers serve it.

        Parameters
        ----------
        force : bool
            Whether to activate the version despite a mark.

        Raises
        ------
        UnknownName
            If the registry doesn't hold it.
        VersionRefused
            If it is damaged or marked.
        """
        self._verify(version)

        def make(journal: Journal) -> Journal:
            if version not in self._storage.versions():  # pruned since it was looked at
                raise UnknownName(f"version: the registry holds no {version!r}", code="unknown_version")
            mark = journal.marks.get(version)
            if mark is not None and not force:
                raise VersionRefused(f"version {version} is marked {mark.state}: {mark.reason}")
            return journal.activated(Activation(version, now(), by, reason))

        return self._change(make)

    def begin(self, version: str, by: str) -> Journal:
        """Activate a version if no version is active yet."""

        def make(journal: Journal) -> Journal:
            if journal.active is not None:
                return journal
            return journal.activated(Activation(version, now(), by, "the first of this registry"))

        return self._change(make)

    def rollback(self, by: str, reason: str = "") -> Journal:
        """Roll back to the latest earlier version that is still in the registry and not marked.

        Raises
        ------
        VersionRefused
            If there is no such version.
        """

        def make(journal: Journal) -> Journal:
            previous = self._previous(journal)
            if previous is None:
                raise VersionRefused("there is no earlier version to return to")
            return journal.activated(Activation(previous, now(), by, reason, is_return=True))

        return self._change(make)

    def mark(
        self,
        version: str,
        state: Literal["rejected", "failed"],
        reason: str,
        figures: dict[str, Any] | None = None,
    ) -> Journal:
        """Mark a version as rejected or failed; if it is active, roll back all servers to the one before it."""

        def make(journal: Journal) -> Journal:
            marked = journal.marked(version, Mark(state, reason, now(), figures or {}))
            if journal.active != version:
                return marked
            previous = self._previous(marked)
            if previous is None:
                return msgspec.structs.replace(marked, active=None)
            why = f"{version} is {state}: {reason}"
            return marked.activated(Activation(previous, now(), "registry", why, is_return=True))

        return self._change(make)

    def prune(
        self, keep: int = KEEP, recent: int = KEEP, among: Callable[[Held], bool] = lambda held: True
    ) -> list[str]:
        """Delete old versions and return their names; a version that cannot be read is kept.

        Parameters
        ----------
        keep : int
            Number of the newest versions to keep.
        recent : int
            Number of the versions that served last to keep. The active version and the target of a roll-back are
            always kept.
        among : callable
            Returns whether a version may be deleted. All others are kept, and do not count toward `keep`.
        """
        # Only readable versions are candidates, so a folder that merely looks like a version is kept.
        held = [held.manifest.version for held in self.versions() if among(held)]
        newest = held[:keep]
        pruned: list[str] = []

        def make(journal: Journal) -> Journal:
            # Decided inside the change, so that a version that another process activates meanwhile is not deleted.
            staying = {*newest, *journal.recent(recent), journal.active, self._previous(journal)}
            pruned[:] = sorted(set(held) & set(self._storage.versions()) - staying)
            for version in pruned:
                self._storage.remove(version)
            return journal.without(pruned)

        self._change(make)
        return pruned

    def diff(self, one: str, other: str) -> dict[str, tuple[Any, Any]]:
        """Return in what two versions differ: dotted field -> the values of both, None where one has no such field."""
        first, second = (_flat(msgspec.to_builtins(self.manifest(version))) for version in (one, other))
        names = dict.fromkeys([*first, *second])
        pairs = {name: (first.get(name), second.get(name)) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def _verify(self, version: str) -> None:
        try:
            self.manifest(version)
            with self.checkout(version) as folder:
                _check(folder)
        except BadVersion as error:
            raise VersionRefused(f"version {version} is damaged: {error}") from None

    def _previous(self, journal: Journal) -> str | None:
        there = set(self._storage.versions()) - set(journal.marks)
        return next((version for version in journal.earlier() if version in there), None)

    def _change(self, make: Callable[[Journal], Journal]) -> Journal:
        changed = Journal()

        def remake(encoded: bytes | None) -> bytes | None:
            nonlocal changed
            journal = Journal.decode(encoded)
            changed = make(journal)
            return changed.encode() if changed != journal else None

        self._storage.change(remake)
        return changed


def _check(folder: Path) -> None:
    try:
        read_manifest(folder)
    except BadVersion as error:
        raise BadVersion(without_folder(str(error), folder)) from None


def _held(manifest: Manifest, journal: Journal) -> Held:
    return Held(manifest, journal.active == manifest.version, journal.marks.get(manifest.version))


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a document by their dotted names; networks are named by their files, not by their places."""
    if isinstance(value, dict) and value:
        inner = value.items()
    elif isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
        inner = {str(v.get("file", n)): v for n, v in enumerate(value)}.items()
    else:
        return {prefix: value}
    return {
        k: v
        for name, part in inner
        for k, v in _flat(part, f"{prefix}.{name}" if prefix else str(name)).items()
    }
