"""Keeps the loaded versions in sync with the registry."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from tlp_service.errors import BadSettings, BadVersion
from tlp_service.monitoring import Metrics
from tlp_service.scoring.scorer import Scorer
from tlp_service.serving.arrivals import Arrivals
from tlp_service.serving.versions import Versions
from tlp_service.versions.faults import without_folder
from tlp_service.versions.journal import Journal
from tlp_service.versions.registry import Registry

log = logging.getLogger(__name__)

#: Maximum seconds that a stopping server waits for a version that is being loaded.
_STOPPING_S = 10.0

#: Upper bound on the seconds until the next try, after loading failed for a reason outside the version, such
#: as memory.
_MAX_RETRY_S = 60.0


class Follower:
    """Loads the registry's active version in its own thread, and serves it once it is warmed up.

    Every server keeps the active version and the previous ones loaded, so a round that began at one server
    can go on at another. If a version cannot be loaded, it is marked as failed in the registry, and all
    servers roll back to the version before it.

    Parameters
    ----------
    registry : Registry
        Registry to follow.
    versions : Versions
        The loaded versions. Only this thread changes them.
    load : callable
        Loads, checks and warms up the version in a folder.
    kept : int
        Number of versions that stay loaded besides the serving one.
    poll_s : float
        Seconds between two reads of the registry; `wake` triggers a read at once.
    give_up : callable
        Makes the current and all later calls of `load` fail at once.
    """

    def __init__(
        self,
        registry: Registry,
        versions: Versions,
        load: Callable[[Path], Scorer],
        kept: int,
        poll_s: float,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._registry = registry
        self._versions = versions
        self._load = load
        self._kept = kept
        self._poll_s = poll_s
        self._give_up = give_up
        self._arrivals = Arrivals(self._coming, self.wake)
        self._failures = 0  # consecutive failures of loading that were not the fault of a version
        self._metrics = Metrics()  # a placeholder until `start`
        self._followed: Journal | None = None
        self._lost: set[str] = set()  # versions that this server can't load
        self._has_warned = False
        self._woken = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="tlp-versions", daemon=True)

    def start(self, metrics: Metrics) -> None:
        """Start the thread."""
        self._metrics = metrics
        self._thread.start()

    def wake(self) -> None:
        """Make the thread read the registry now. Any thread may call this."""
        self._woken.set()

    async def wait_for(self, version: str, seconds: float) -> bool:
        """Return True once a version is loaded, or False as soon as it is certain that it will not be.

        Raises
        ------
        TimeoutError, NotReady
            See `Arrivals.wait`.
        """
        return await self._arrivals.wait(version, lambda: self._versions.has(version), seconds)

    def drain(self) -> None:
        """Refuse all requests that wait for a version; called on the event loop."""
        self._arrivals.close()

    def stop(self) -> None:
        """End the thread."""
        self._is_stopping = True
        self._arrivals.close()
        self._give_up()
        self._woken.set()
        self._thread.join(_STOPPING_S)

    def follow(self) -> None:
        """Read the registry once, and load the versions that it names."""
        self._arrivals.begin()
        is_whole = True
        try:
            journal = self._registry.journal()
            # The folder was removed, its mount is missing, or the document was deleted.
            if journal.is_empty:
                raise OSError("it is missing, or has no active.json")
            if journal != self._followed:
                self._versions.know(self._registry.names())
                self._serve(journal)
                is_whole = self._keep(journal)
                if is_whole:
                    self._followed = journal
        except (OSError, BadVersion, BadSettings, MemoryError) as error:
            # The error may be temporary; the loaded version keeps serving.
            self._note(error)
        else:
            self._note(None)
        if is_whole:
            self._arrivals.end()

    def _note(self, error: Exception | None) -> None:
        """Log once that the registry can't be followed, and once that it can be again."""
        if self._is_stopping:
            return
        if error is not None and not self._has_warned:
            serving = self._versions.serving.manifest.version
            log.warning("the registry can't be followed, version %s keeps serving: %s", serving, error)
        elif error is None and self._has_warned:
            log.info("the registry can be followed again")
        self._has_warned = error is not None
        self._metrics.registry_reachable.set(0 if error is not None else 1)

    def _coming(self) -> frozenset[str]:
        """Return the versions that this server should hold according to the registry now."""
        try:
            journal = self._registry.journal()
        except (OSError, BadVersion, BadSettings, MemoryError):
            return frozenset()
        return frozenset(journal.recent(1 + self._kept)) - journal.marks.keys() - self._lost

    def _run(self) -> None:
        while not self._is_stopping:
            self._woken.clear()
            try:
                self.follow()
            except Exception:
                # Without this thread no later version would ever serve.
                log.exception("the registry can't be followed")
                self._arrivals.end()
            retry_s = min(self._poll_s * 2 ** min(self._failures, 10), _MAX_RETRY_S)
            self._woken.wait(max(self._poll_s, retry_s))

    def _serve(self, journal: Journal) -> None:
        active = journal.active
        if active is None or active == self._versions.serving.manifest.version:
            return
        loaded = self._loaded()
        scorer = loaded.get(active) or self._try(active)
        if scorer is None:
            return
        self._versions.hold(scorer, self._staying(journal, loaded, scorer))
        self._arrivals.tell()
        self._metrics.swaps.inc()
        log.info("serving version %s", active)

    def _try(self, version: str) -> Scorer | None:
        self._lost.discard(version)
        folder = Path(version)  # used in messages if the checkout fails
        try:
            with self._registry.checkout(version) as folder:
                scorer = self._load(folder)
        except (OSError, BadSettings, MemoryError):
            self._failures += 1
            raise  # the version is not at fault
        except Exception as error:  # noqa: BLE001  onnxruntime's exceptions have no common base
            self._failures = 0
            self._lost.add(version)
            self._metrics.failed_loads.inc()
            log.error("version %s can't be loaded, the previous one keeps serving: %s", version, error)
            self._mark(version, without_folder(str(error), folder))
            return None
        self._failures = 0
        return scorer

    def _mark(self, version: str, reason: str) -> None:
        try:
            self._registry.mark(version, "failed", f"on {socket.gethostname()}: {reason}")
        except OSError as unwritable:
            log.warning("version %s can't be marked as failed: %s", version, unwritable)
        else:
            self._woken.set()  # another version is active now

    def _keep(self, journal: Journal) -> bool:
        """Load earlier versions that are not loaded yet, for example after a start.

        Return False if another version became active in the meantime. More requests wait for that one, so it
        is loaded first.
        """
        for version in journal.recent(1 + self._kept)[1:]:
            loaded = self._loaded()
            if version in loaded or version in self._lost or version in journal.marks or self._is_stopping:
                continue
            if self._registry.journal().active != journal.active:
                self._woken.set()
                return False
            try:
                with self._registry.checkout(version) as folder:
                    loaded[version] = self._load(folder)
            except Exception as error:  # noqa: BLE001  it is worth no second try
                if self._is_stopping:
                    break
                self._lost.add(version)
                log.warning("version %s is not kept for the rounds that began with it: %s", version, error)
                continue
            serving = self._versions.serving
            self._versions.hold(serving, self._staying(journal, loaded, serving))
            self._arrivals.tell()
        return True

    def _staying(self, journal: Journal, loaded: dict[str, Scorer], serving: Scorer) -> list[Scorer]:
        # Loaded versions outside the history come last: they served before the registry had a history.
        order = dict.fromkeys([*journal.recent(1 + self._kept), *loaded])
        return [loaded[v] for v in order if v in loaded and loaded[v] is not serving][: self._kept]

    def _loaded(self) -> dict[str, Scorer]:
        return {scorer.manifest.version: scorer for scorer in self._versions.loaded}
