"""The loaded versions: the serving one, and previous ones that unfinished rounds still request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tlp_service.errors import UnknownName, VersionGone
from tlp_service.scoring.scorer import Scorer


@dataclass(frozen=True, slots=True)
class _Loaded:
    serving: Scorer
    by_name: dict[str, Scorer]  # never mutated; the serving version comes first


class Versions:
    """The loaded versions, from which each request takes its scorer.

    One thread changes the versions, and any thread may read them without a lock. A request takes its `Scorer`
    once and keeps it to the end, so a swap never mixes two versions in one answer. A dropped version is freed
    when its last request ends.

    Parameters
    ----------
    serving : Scorer
        The version that serves at first.
    """

    def __init__(self, serving: Scorer) -> None:
        self._loaded = _Loaded(serving, {serving.manifest.version: serving})
        self._known: frozenset[str] = frozenset()
        self._listener: Callable[[Sequence[Scorer]], None] | None = None

    @property
    def serving(self) -> Scorer:
        """The version that serves."""
        return self._loaded.serving

    @property
    def loaded(self) -> list[Scorer]:
        """All loaded versions, the serving one first."""
        return list(self._loaded.by_name.values())

    def get(self, version: str | None) -> Scorer:
        """Return the scorer of a version, or of the serving one for None.

        Raises
        ------
        VersionGone
            If the version is no longer loaded.
        UnknownName
            If the registry has never had such a version.
        """
        loaded = self._loaded
        if version is None:
            return loaded.serving
        scorer = loaded.by_name.get(version)
        if scorer is not None:
            return scorer
        message = f"version: {version!r} is not loaded; {loaded.serving.manifest.version!r} serves"
        missing = (
            VersionGone(message) if version in self._known else UnknownName(message, code="unknown_version")
        )
        missing.version = version
        raise missing

    def has(self, version: str) -> bool:
        """Return whether a version is loaded."""
        return version in self._loaded.by_name

    def hold(self, serving: Scorer, kept: Sequence[Scorer]) -> None:
        """Set the serving version and the other versions to keep loaded; drop all others."""
        named = {scorer.manifest.version: scorer for scorer in (serving, *kept)}
        self._loaded = _Loaded(serving, named)
        self._tell()

    def know(self, names: frozenset[str]) -> None:
        """Set the names of all versions in the registry's history, whether loaded or not."""
        self._known = names

    def listen(self, listener: Callable[[Sequence[Scorer]], None]) -> None:
        """Call a listener now and after each change."""
        self._listener = listener
        self._tell()

    def _tell(self) -> None:
        if self._listener is not None:
            self._listener(self.loaded)
