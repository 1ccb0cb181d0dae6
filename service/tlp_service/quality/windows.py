"""Windows of prediction error per platform and version.

Each measured candidate is scored by the version that its search used and by the serving version.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from tlp_client.records import Record
from tlp_client.wire.predict import request_of
from tlp_service.errors import RequestFault
from tlp_service.measurements.stream import Entry
from tlp_service.quality.latest import Latest
from tlp_service.quality.prediction_error import ErrorWindow, Measured, is_drifting
from tlp_service.scoring.scorer import Scorer

log = logging.getLogger(__name__)

#: Maximum number of measurements per window, and of windows; the least recently updated windows are dropped.
WINDOW, _MAX_WINDOWS = 2000, 256
#: Maximum number of measurements that wait to be scored; beyond it, all of them are scored.
_MAX_UNSCORED = 20_000

#: Platform and version.
_Key = tuple[str, str]


class _Came(NamedTuple):
    """A measured candidate that waits to be scored."""

    worker: str
    record: Record


class Quality:
    """Windows of measured candidates by platform and version.

    The stream may deliver an entry twice, after a crash or after somebody deleted the consumer group.
    The windows deduplicate measurements by id, as the record store does by content.

    Parameters
    ----------
    scorer_of : callable
        Returns the scorer of a version by its name, or None if the version is not available.
    serving : callable
        Returns the name of the serving version, or None.
    """

    def __init__(self, scorer_of: Callable[[str], Scorer | None], serving: Callable[[], str | None]) -> None:
        self._scorer_of = scorer_of
        self._serving = serving
        self._windows: OrderedDict[_Key, ErrorWindow] = OrderedDict()
        self._at_gate: dict[_Key, float] = {}
        # Scoring is deferred until a report is due, since it takes the most time of all of the recorder's work.
        # At a high rate, most measurements leave their window before the next report, so they need no score.
        self._unscored: OrderedDict[_Key, Latest[_Came]] = OrderedDict()

    def take(self, records: Sequence[tuple[Entry, Record]], times_s: Sequence[float]) -> None:
        """Queue measured candidates; those still in their window are scored when the next report is made.

        Parameters
        ----------
        records : sequence of (Entry, Record)
            Measured candidates in order of arrival.
        times_s : sequence of float
            Time of arrival of each candidate in seconds.
        """
        serving = self._serving()
        for (entry, record), time_s in zip(records, times_s, strict=True):
            # Python's string hashes have a random seed, so nobody can choose ids that collide.
            id_, came = hash(entry.id), _Came(entry.worker, record)
            for version in {entry.version, serving} - {"", None}:
                self._take((entry.platform, str(version)), id_, time_s, came)
        if sum(map(len, self._unscored.values())) > _MAX_UNSCORED:
            self._score()

    def _take(self, key: _Key, id_: int, time_s: float, came: _Came) -> None:
        # The windows are ordered by the time of their last update.
        if (window := self._windows.get(key)) is not None and not window.lacks(id_, time_s):
            self._windows.move_to_end(key)
            return
        if (waiting := self._unscored.get(key)) is None:
            waiting = self._unscored[key] = Latest(WINDOW)
        waiting.add(id_, time_s, came)
        self._unscored.move_to_end(key)

    def _score(self) -> None:
        """Score the queued candidates, and add them to their windows."""
        for key in list(self._unscored):
            # Removed before it is scored, so that a failing batch is not scored again and again.
            came = self._unscored.pop(key)
            platform, version = key
            scorer = self._scorer_of(version)
            if scorer is None:  # any worker can name versions
                continue
            scores = _scores(scorer, platform, [one.record for one in came])
            window = self._window(key, _at_gate(scorer, platform))
            for (id_, time_s, (worker, record)), score in zip(came.entries(), scores, strict=True):
                cost = float(np.median(record.costs)) if record.is_valid else math.nan
                window.add(Measured(worker, record.task.workload, score, cost, time_s, id_))

    def document(self, time_s: float) -> dict[str, Any]:
        """Return the report: the figures of all windows as JSON values; None for a figure without a value."""
        self._score()
        serving = self._serving()
        platforms: dict[str, dict[str, Any]] = defaultdict(dict)
        for (platform, version), window in self._windows.items():
            figures = window.figures()
            at_gate = self._at_gate[platform, version]
            platforms[platform][version] = {
                **{name: _value(value) for name, value in asdict(figures).items()},
                "serving": version == serving,
                "pair_accuracy_at_gate": _value(at_gate),
                "drifting": None if math.isnan(at_gate) else is_drifting(figures, at_gate),
            }
        return {"time": time_s, "serving": serving, "window": WINDOW, "platforms": dict(platforms)}

    def _window(self, key: _Key, at_gate: float) -> ErrorWindow:
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = ErrorWindow(WINDOW)
        self._at_gate[key] = at_gate
        self._windows.move_to_end(key)
        while len(self._windows) > _MAX_WINDOWS:
            gone, _ = self._windows.popitem(last=False)
            del self._at_gate[gone]
        return window


def _at_gate(scorer: Scorer, platform: str) -> float:
    """Return a version's pair accuracy at the gate for a platform; NaN if its manifest does not state it."""
    gate = scorer.manifest.training.get("gate")
    figure = gate.get(platform) if isinstance(gate, dict) else None
    return float(figure) if isinstance(figure, float | int) else math.nan


def _scores(scorer: Scorer, platform: str, records: Sequence[Record]) -> list[float]:
    """Return the scores of candidates; NaN for a candidate that the version cannot score."""
    by_task = defaultdict(list)
    for place, record in enumerate(records):
        by_task[record.task].append(place)
    scores = np.full(len(records), math.nan)
    for task, places in by_task.items():
        asked = scorer.manifest.known(platform)
        request = request_of(task, (records[place].primitives for place in places), asked)
        try:
            scores[places] = scorer.score(request, chunk=64).scores
        except RequestFault as error:  # the version has no network for this target
            log.debug("%s on %s: %s", scorer.manifest.version, platform, error)
        except Exception:  # a fault in one task must not affect the figures of the others
            log.exception("no scores of %s for a task of %s", scorer.manifest.version, platform)
    found: list[float] = scores.tolist()
    return found


def _value(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
