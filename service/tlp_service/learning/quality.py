"""Prediction error of the versions in use, from what workers measure: each candidate is scored by the version that its search used, and by the serving one."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tlp_client.records import Record
from tlp_client.wire.predict import request_of
from tlp_service.errors import ApiError
from tlp_service.learning.prediction_error import ErrorWindow, Measured, is_drifting
from tlp_service.measurements.stream import Entry
from tlp_service.scoring.scorer import Scorer

log = logging.getLogger(__name__)

#: Measurements a window, and windows of platforms and versions; those that heard of nothing for longest go.
WINDOW, _MOST_WINDOWS = 2000, 256
#: Measurements that wait to be scored.
_MOST_UNSCORED = 20_000


class Quality:
    """Windows of measured candidates by platform and version.

    Parameters
    ----------
    scorer_of : callable
        Returns a version by its name, or None for one that is not to be had.
    serving : callable
        Returns the name of the serving version, or None.
    """

    def __init__(self, scorer_of: Callable[[str], Scorer | None], serving: Callable[[], str | None]) -> None:
        self._scorer_of = scorer_of
        self._serving = serving
        self._windows: OrderedDict[tuple[str, str], ErrorWindow] = OrderedDict()
        self._at_gate: dict[tuple[str, str], float] = {}
        # Scores take the most time of all that recording does, and where much comes in most of them would never be told.
        self._unscored: OrderedDict[tuple[str, str], deque[tuple[str, Record, float]]] = OrderedDict()

    def take(self, records: Sequence[tuple[Entry, Record]], times_s: Sequence[float]) -> None:
        """Take measured candidates in. They are scored when figures are told, those that have not left their window by then.

        Parameters
        ----------
        records : sequence of (Entry, Record)
            In the order in which they came.
        times_s : sequence of float
            When each came, in seconds.
        """
        serving = self._serving()
        for (entry, record), time_s in zip(records, times_s, strict=True):
            for version in {entry.version, serving} - {"", None}:
                key = (entry.platform, str(version))
                came = self._unscored.setdefault(key, deque(maxlen=WINDOW))
                came.append((entry.worker, record, time_s))
                # The windows are in the order in which they last heard of something.
                self._unscored.move_to_end(key)
        if sum(map(len, self._unscored.values())) > _MOST_UNSCORED:
            self._score()

    def _score(self) -> None:
        """Score what has come in, and take it into its windows."""
        for platform, version in list(self._unscored):
            came = self._unscored.pop((platform, version))  # first, lest what fails comes again and again
            scorer = self._scorer_of(version)
            if scorer is None:  # any worker can name versions
                continue
            gate = scorer.manifest.training.get("gate", {})
            self._at_gate[version, platform] = float(gate.get(platform, math.nan))
            by_task = defaultdict(list)
            for place, (_, record, _) in enumerate(came):
                by_task[record.task].append(place)
            scores = np.empty(len(came))
            for places in by_task.values():
                scores[places] = _scores(scorer, platform, [came[place][1] for place in places])
            window = self._window(platform, version)
            for (worker, record, time_s), score in zip(came, scores.tolist(), strict=True):
                cost = float(np.median(record.costs)) if record.is_valid else math.nan
                window.add(Measured(worker, record.task.workload, score, cost, time_s))

    def document(self, time_s: float) -> dict[str, Any]:
        """Return the figures of all windows as JSON values, None for those of which nothing can be said."""
        self._score()
        serving = self._serving()
        platforms: dict[str, dict[str, Any]] = defaultdict(dict)
        for (platform, version), window in self._windows.items():
            figures = window.figures()
            at_gate = self._at_gate[version, platform]
            platforms[platform][version] = {
                **{name: _value(value) for name, value in asdict(figures).items()},
                "serving": version == serving,
                "pair_accuracy_at_gate": _value(at_gate),
                "drifting": None if math.isnan(at_gate) else is_drifting(figures, at_gate),
            }
        return {"time": time_s, "serving": serving, "window": WINDOW, "platforms": dict(platforms)}

    def _window(self, platform: str, version: str) -> ErrorWindow:
        key = (platform, version)
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = ErrorWindow(WINDOW)
        self._windows.move_to_end(key)
        while len(self._windows) > _MOST_WINDOWS:
            (gone_platform, gone_version), _ = self._windows.popitem(last=False)
            del self._at_gate[gone_version, gone_platform]
        return window


def _scores(scorer: Scorer, platform: str, records: Sequence[Record]) -> list[float]:
    """Return the scores of candidates of one task; NaN for those that the version has none for."""
    asked = scorer.manifest.known(platform)
    request = request_of(records[0].task, (record.primitives for record in records), asked)
    try:
        scores: list[float] = scorer.score(request, chunk=64).scores.tolist()
    except ApiError as error:  # a target that the version has no network for
        log.debug("%s on %s: %s", scorer.manifest.version, platform, error)
        return [math.nan] * len(records)
    return scores


def _value(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
