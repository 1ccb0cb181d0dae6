"""Keeps the loaded versions as the registry has them."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from tlp_service.errors import BadSettings, BadVersion
from tlp_service.monitoring import Metrics
from tlp_service.scoring.scorer import Scorer
from tlp_service.scoring.versions import Versions
from tlp_service.versions.journal import Journal
from tlp_service.versions.registry import Registry

log = logging.getLogger(__name__)

#: Seconds that a stopping server waits for a version that is being loaded.
_STOPPING_S = 10.0


class Follower:
    """Loads what the registry activates, in a thread of its own, and lets it serve once it is warm.

    Every server holds the active version and those that served last, so a round that began at one server goes on at
    another. A version that can't be loaded is marked, which has all servers return to the one before.

    Parameters
    ----------
    registry : Registry
        What is followed.
    versions : Versions
        The loaded ones; changed by this thread only.
    load : callable
        Loads, checks and warms up the version in a folder.
    kept : int
        Versions that stay loaded beside the serving one.
    poll_s : float
        Seconds after which the registry is looked at, unless somebody calls `wake`.
    """

    def __init__(
        self,
        registry: Registry,
        versions: Versions,
        load: Callable[[Path], Scorer],
        kept: int,
        poll_s: float,
    ) -> None:
        self._registry = registry
        self._versions = versions
        self._load = load
        self._kept = kept
        self._poll_s = poll_s
        self._metrics = Metrics()  # nobody's, until `start`
        self._followed: Journal | None = None
        self._lost: set[str] = set()  # earlier versions that can't be loaded any more
        self._has_warned = False
        self._woken = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="tlp-versions", daemon=True)

    def start(self, metrics: Metrics) -> None:
        """Begin to follow."""
        self._metrics = metrics
        self._thread.start()

    def wake(self) -> None:
        """Look at the registry now; any thread may ask for it."""
        self._woken.set()

    def stop(self) -> None:
        """End the thread."""
        self._is_stopping = True
        self._woken.set()
        self._thread.join(_STOPPING_S)

    def follow(self) -> None:
        """Look at the registry once, and load what it says."""
        try:
            journal = self._registry.journal()
            if journal != self._followed:
                self._versions.know(self._registry.names())
                self._serve(journal)
                self._keep(journal)
                self._followed = journal
        except (OSError, BadVersion, BadSettings, MemoryError) as error:
            # It may be better in a moment; what serves goes on.
            if not self._has_warned:
                log.warning("the registry can't be followed: %s", error)
            self._has_warned = True
        else:
            self._has_warned = False

    def _run(self) -> None:
        while not self._is_stopping:
            self._woken.clear()
            try:
                self.follow()
            except Exception:
                log.exception(
                    "the registry can't be followed"
                )  # without this thread none would serve any more
            self._woken.wait(self._poll_s)

    def _serve(self, journal: Journal) -> None:
        active = journal.active
        if active is None or active == self._versions.serving.manifest.version:
            return
        loaded = self._loaded()
        scorer = loaded.get(active) or self._try(active)
        if scorer is None:
            return
        self._versions.hold(scorer, self._staying(journal, loaded, scorer))
        self._metrics.swaps.inc()
        log.info("serving version %s", active)

    def _try(self, version: str) -> Scorer | None:
        try:
            with self._registry.checkout(version) as folder:
                return self._load(folder)
        except (OSError, BadSettings, MemoryError):
            raise  # no fault of the version
        except Exception as error:  # noqa: BLE001  onnxruntime's exceptions have no common base
            self._metrics.failed_loads.inc()
            log.error("version %s can't be loaded, the one before serves on: %s", version, error)
            self._mark(version, error)
            return None

    def _mark(self, version: str, error: Exception) -> None:
        try:
            self._registry.mark(version, "failed", f"on {socket.gethostname()}: {error}")
        except OSError as unwritable:
            log.warning("version %s can't be marked as failed: %s", version, unwritable)
        else:
            self._woken.set()  # another version is active now

    def _keep(self, journal: Journal) -> None:
        """Load the earlier versions that are missing here, as after a start."""
        for version in journal.recent(1 + self._kept)[1:]:
            loaded = self._loaded()
            if version in loaded or version in self._lost or version in journal.marks or self._is_stopping:
                continue
            try:
                with self._registry.checkout(version) as folder:
                    loaded[version] = self._load(folder)
            except Exception as error:  # noqa: BLE001  it is worth no second try
                self._lost.add(version)
                log.warning("version %s is not kept for the rounds that began with it: %s", version, error)
                continue
            serving = self._versions.serving
            self._versions.hold(serving, self._staying(journal, loaded, serving))

    def _staying(self, journal: Journal, loaded: dict[str, Scorer], serving: Scorer) -> list[Scorer]:
        # What is loaded and stands in no history comes last: the version that served before there was any.
        order = dict.fromkeys([*journal.recent(1 + self._kept), *loaded])
        return [loaded[v] for v in order if v in loaded and loaded[v] is not serving][: self._kept]

    def _loaded(self) -> dict[str, Scorer]:
        return {scorer.manifest.version: scorer for scorer in self._versions.loaded}
