"""The loaded versions: the one that serves, and the last ones, which the rounds that began with them still ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tlp_service.errors import UnknownName, VersionGone
from tlp_service.scoring.scorer import Scorer


@dataclass(frozen=True, slots=True)
class _Loaded:
    serving: Scorer
    by_name: dict[str, Scorer]  # never changed; the serving one comes first


class Versions:
    """Which version scores a request. Read by any thread without a lock, changed by one.

    A request takes its `Scorer` once and goes by it to the end, so its answer is of one version whatever is swapped
    meanwhile; what is dropped is freed when the last such request ends.

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
        """All that are loaded, the serving one first."""
        return list(self._loaded.by_name.values())

    def get(self, version: str | None) -> Scorer:
        """Return the version that is asked for, or the one that serves.

        Raises
        ------
        VersionGone
            If it isn't loaded any more.
        UnknownName
            If there never was such a version.
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
        """Let a version serve and keep others loaded; drop the rest."""
        named = {scorer.manifest.version: scorer for scorer in (serving, *kept)}
        self._loaded = _Loaded(serving, named)
        self._tell()

    def know(self, names: frozenset[str]) -> None:
        """Say which versions there are or were, loaded or not."""
        self._known = names

    def listen(self, listener: Callable[[Sequence[Scorer]], None]) -> None:
        """Call a listener now and after each change."""
        self._listener = listener
        self._tell()

    def _tell(self) -> None:
        if self._listener is not None:
            self._listener(self.loaded)
