"""``tlp recorder``: stores measurements, and reports how well scores predict them.

The recorder is a separate process with low priority, because writing Parquet must not delay scoring. There is
one per measurement stream.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import OrderedDict
from pathlib import Path

from tlp_service.children import Stopping
from tlp_service.errors import BadVersion, ServiceFault
from tlp_service.measurements.recorder import Recorder
from tlp_service.processes.beginning import begin
from tlp_service.quality.reporter import QualityReporter
from tlp_service.quality.windows import Quality
from tlp_service.redis_url import connect
from tlp_service.scoring.scorer import Scorer
from tlp_service.serving.loader import VersionLoader
from tlp_service.settings import Settings
from tlp_service.stuck_threads import leave_stuck_threads
from tlp_service.versions.manifest import read_manifest
from tlp_service.versions.registry import Registry

log = logging.getLogger(__name__)

#: Seconds between two reads of the registry.
_LOOK_S = 2.0
#: Maximum number of loaded versions, maximum number of remembered unavailable versions, and seconds until an
#: unavailable version is looked up again.
_MAX_SCORERS, _MAX_MISSING, _MISSING_S = 4, 256, 60.0
_NICENESS = 10


def record(settings: Settings) -> int:
    """Record until a signal comes; return the exit status.

    Raises
    ------
    BadSettings, BadRecords
        See `begin`.
    """
    url, store = begin(settings, _NICENESS)
    stopping = Stopping()
    stopping.listen()
    recorder = Recorder(url, store, "recorder")
    versions = _Versions(settings)
    client = connect(url, timeout_s=5)
    reporter = QualityReporter(client, Quality(versions.scorer, versions.serving))
    log.info("measurements are kept in %s", store.folder)
    try:
        recorder.run(stopping, reporter.take)
    finally:
        recorder.close()
        versions.stop()
        reporter.close()
    leave_stuck_threads("tlp-figures")
    return 0


class _Versions:
    """The versions whose quality is measured: the serving one, and those that searches report as used."""

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._registry = Registry(settings.registry_url)
        self._scorers: OrderedDict[str, Scorer] = OrderedDict()
        self._missed_s: OrderedDict[str, float] = OrderedDict()
        self._active: str | None = read_manifest(self._model).version if self._model is not None else None
        self._looked_s = float("-inf")
        self._load_tried = VersionLoader()

    def stop(self) -> None:
        """Abort the loading of a version."""
        self._load_tried.stop()

    def serving(self) -> str | None:
        """Return the name of the serving version."""
        if self._model is None and time.monotonic() - self._looked_s >= _LOOK_S:
            self._looked_s = time.monotonic()
            with contextlib.suppress(
                OSError, BadVersion
            ):  # keep the last known version until the registry is readable again
                journal = self._registry.journal()
                if not journal.is_empty:  # as when its mount is missing
                    self._active = journal.active
        return self._active

    def scorer(self, version: str) -> Scorer | None:
        """Return the scorer of a version, or None if the version is not available."""
        scorer = self._scorers.get(version)
        if scorer is None:
            if time.monotonic() < self._missed_s.get(version, 0.0):
                return None
            scorer = self._load(version)
            if scorer is None:  # it may be published later, or the registry may come back
                self._missed_s[version] = time.monotonic() + _MISSING_S
                while len(self._missed_s) > _MAX_MISSING:
                    self._missed_s.popitem(last=False)
                return None
            self._scorers[version] = scorer
        self._scorers.move_to_end(version)
        while len(self._scorers) > _MAX_SCORERS:
            self._scorers.popitem(last=False)
        return scorer

    def _load(self, version: str) -> Scorer | None:
        try:
            if self._model is not None:
                return Scorer(self._model) if version == self._active else None
            with self._registry.checkout(version) as folder:
                return self._load_tried(Path(folder))
        except (ServiceFault, OSError) as error:
            log.warning("no figures for version %.140s: %s", version, error)
            return None
