"""Prediction error of a version over a sliding window of measurements. Pure: no clock, no I/O."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tlp_service.quality.latest import Latest
from tlp_service.ranking.figures import TaskFigures, figures_of, summarise
from tlp_service.ranking.plausible import is_plausible
from tlp_service.ranking.ranking import top_k_cost

#: Minimum gap in seconds between two results of one worker and task that separates two search rounds.
ROUND_GAP_S = 5.0
#: Minimum number of candidates of a task to rank it, and of a search round to compute its regret.
_RANKED = 4
_QUINTILES = 5
#: Maximum regret of a round (ten times the run time of the best), so that few rounds cannot dominate the mean.
#: In the public logs, random choices stay below it in 95 % of the rounds, but exceed 45 in 1 %.
_MAX_REGRET = 9.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured candidate, and the score that a version gave it.

    Parameters
    ----------
    worker, workload : str
        Name of the worker, and workload key of the task.
    score : float
        Score by the version; NaN if the version cannot score the candidate.
    cost : float
        Measured seconds; NaN for a run that failed.
    time_s : float
        Time of arrival in seconds.
    id : int or None
        Identifies the measurement if the stream may deliver it twice; None if it is delivered only once.
    """

    worker: str
    workload: str
    score: float
    cost: float
    time_s: float
    id: int | None = None


@dataclass(frozen=True, slots=True)
class ErrorFigures:
    """Prediction error of a version on a platform; a figure without enough measurements is NaN.

    Parameters
    ----------
    measured, tasks, rounds : int
        Number of candidates in the window, and of tasks and search rounds with enough candidates.
    failed_share : float
        Share of the runs that failed.
    outlier_share : float
        Share of the measurements whose cost cannot be a run time (see `is_plausible`); the figures below exclude them.
    pair_accuracy, pair_accuracy_low, pair_accuracy_high : float
        Share of the pairs inside tasks that the scores order correctly, mean over tasks, and its 95 % interval by
        bootstrap over tasks.
    kendall_tau : float
        Kendall's tau-b inside tasks, mean over tasks.
    top1_regret, top5_regret : float
        Extra run time of the fastest of the one or five best-scored candidates of a search round over the fastest of
        the round, as a share of the latter; at most 9 per round, mean over rounds.
    calibration : tuple of (float, float)
        Mean score and mean label (best cost of the task ÷ the candidate's cost) per quintile of the scores.
        Labels rise with the scores of a good model.
    """

    measured: int
    tasks: int
    rounds: int
    failed_share: float
    outlier_share: float
    pair_accuracy: float
    pair_accuracy_low: float
    pair_accuracy_high: float
    kendall_tau: float
    top1_regret: float
    top5_regret: float
    calibration: tuple[tuple[float, float], ...]


class ErrorWindow:
    """The latest measurements of one platform with the scores of a version, each once.

    Parameters
    ----------
    capacity : int
        Maximum number of measurements.
    """

    def __init__(self, capacity: int = 2000) -> None:
        self._measured = Latest[Measured](capacity)
        self._figures: ErrorFigures | None = None

    def add(self, measured: Measured) -> None:
        """Add a measurement that is not in the window; a full window drops its oldest one."""
        if self._measured.add(measured.id, measured.time_s, measured):
            self._figures = None

    def lacks(self, id_: int, time_s: float) -> bool:
        """Return whether `add` would accept a measurement."""
        return self._measured.lacks(id_, time_s)

    def __len__(self) -> int:
        return len(self._measured)

    def figures(self) -> ErrorFigures:
        """Return the figures of the measurements in the window."""
        if self._figures is None:
            self._figures = _figures_of(list(self._measured))
        return self._figures


def _figures_of(measured: Sequence[Measured]) -> ErrorFigures:
    ran = [m for m in measured if math.isfinite(m.cost)]
    counting = _counting(ran)
    valid = [m for m in counting if math.isfinite(m.score)]
    tasks = _tasks_of(valid)
    summary = summarise(tasks) if tasks else None
    pairs = summary["pair_accuracy"] if summary else None
    rounds = [r for r in _rounds(valid) if len(r) >= _RANKED]
    nan = math.nan
    return ErrorFigures(
        measured=len(measured),
        tasks=len(tasks),
        rounds=len(rounds),
        failed_share=(len(measured) - len(ran)) / len(measured) if measured else nan,
        outlier_share=(len(ran) - len(counting)) / len(measured) if measured else nan,
        pair_accuracy=pairs.value if pairs else nan,
        pair_accuracy_low=pairs.low if pairs else nan,
        pair_accuracy_high=pairs.high if pairs else nan,
        kendall_tau=summary["kendall_tau"].value if summary else nan,
        top1_regret=_regret(rounds, 1),
        top5_regret=_regret(rounds, 5),
        calibration=_calibration(valid),
    )


def _counting(ran: Sequence[Measured]) -> list[Measured]:
    """Return the measurements whose cost can be a run time, in the same order."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, measured in enumerate(ran):
        places[measured.workload].append(place)
    costs, counts = _costs(ran), np.ones(len(ran), dtype=np.bool_)
    for workload, of_task in places.items():
        counts[of_task] = is_plausible(workload, costs[of_task])
    return [measured for measured, does_count in zip(ran, counts, strict=True) if does_count]


def is_drifting(figures: ErrorFigures, at_gate: float, min_tasks: int = 5) -> bool:
    """Return whether a version ranks new measurements significantly worse than when the gate accepted it.

    Parameters
    ----------
    figures : ErrorFigures
        The version's figures on a platform.
    at_gate : float
        The version's pair accuracy on held-back candidates of the platform; NaN if it was not measured.
    min_tasks : int
        Minimum number of tasks; with fewer, the result is False.
    """
    return figures.tasks >= min_tasks and figures.pair_accuracy_high < at_gate


def _tasks_of(valid: Sequence[Measured]) -> list[TaskFigures]:
    by_task: dict[str, list[Measured]] = defaultdict(list)
    for measured in valid:
        by_task[measured.workload].append(measured)
    found = [
        figures_of("", workload, _scores(own), _costs(own))
        for workload, own in by_task.items()
        if len(own) >= _RANKED
    ]
    return [figures for figures in found if not math.isnan(figures.pair_accuracy)]


def _rounds(valid: Sequence[Measured]) -> list[list[Measured]]:
    """Group measurements into search rounds: measurements of one worker and task without a long gap in time."""
    rounds: list[list[Measured]] = []
    open_rounds: dict[tuple[str, str], list[Measured]] = {}
    for measured in valid:
        key = (measured.worker, measured.workload)
        last = open_rounds.get(key)
        if last is None or measured.time_s - last[-1].time_s > ROUND_GAP_S:
            last = open_rounds[key] = []
            rounds.append(last)
        last.append(measured)
    return rounds


def _regret(rounds: Sequence[Sequence[Measured]], k: int) -> float:
    if not rounds:
        return math.nan
    regrets = [top_k_cost(_scores(r), _costs(r), k) / min(m.cost for m in r) - 1 for r in rounds]
    return float(np.mean(np.minimum(regrets, _MAX_REGRET)))


def _calibration(valid: Sequence[Measured]) -> tuple[tuple[float, float], ...]:
    if len(valid) < _QUINTILES:
        return ()
    best: dict[str, float] = {}
    for measured in valid:
        best[measured.workload] = min(measured.cost, best.get(measured.workload, math.inf))
    scores = _scores(valid)
    labels = np.array([best[m.workload] / m.cost for m in valid])
    fifths = np.array_split(np.argsort(scores, kind="stable"), _QUINTILES)
    return tuple((float(scores[fifth].mean()), float(labels[fifth].mean())) for fifth in fifths)


def _scores(measured: Sequence[Measured]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([m.score for m in measured])


def _costs(measured: Sequence[Measured]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([m.cost for m in measured])
