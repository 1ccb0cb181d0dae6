"""``tlp evaluate``: how well a model version ranks measured records."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from tlp_client.primitives import Primitive
from tlp_client.records import Record
from tlp_client.tasks import platform_kind
from tlp_client.wire.predict import PredictRequest, request_of
from tlp_service.errors import RequestFault
from tlp_service.ranking.figures import Interval, TaskFigures, figures_of, summarise
from tlp_service.ranking.plausible import is_plausible
from tlp_service.scoring.scorer import Scorer

log = logging.getLogger(__name__)

_SHOWN = ("top1_mean", "top5_mean", "top1_pooled", "top5_pooled", "pair_accuracy", "kendall_tau", "ndcg")


@dataclass(slots=True)
class Evaluation:
    """Ranking metrics of a version on some records.

    Parameters
    ----------
    model, version : str
        Name of the model, and of the version.
    tasks : list of TaskFigures
        Metrics of each task with enough candidates.
    left_out : Counter
        Number of excluded records or candidates, by cause.
    """

    model: str
    version: str
    tasks: list[TaskFigures] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def platforms(self) -> dict[str, list[TaskFigures]]:
        """The tasks by platform, and all of them."""
        ordered = sorted(self.tasks, key=lambda task: task.platform)
        found = {name: list(tasks) for name, tasks in groupby(ordered, key=lambda task: task.platform)}
        return found | {"all": ordered} if len(found) > 1 else found

    def table(self) -> str:
        """Return the figures by platform as text, each with its interval."""
        lines = [f"{self.model} {self.version}"]
        for platform, tasks in self.platforms.items():
            candidates = sum(task.candidates for task in tasks)
            lines.append(f"\n{platform}: {len(tasks)} tasks, {candidates} candidates")
            summary = summarise(tasks)
            for name in _SHOWN:
                beside = summary.get(f"random_{name}")
                chance = f"   random {beside.value:.3f}" if beside else ""
                lines.append(f"  {name:<14} {_shown(summary[name])}{chance}")
        lines += [f"left out, {cause}: {count}" for cause, count in sorted(self.left_out.items())]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return all figures: of the platforms with intervals, and of each task; None where there is none."""
        return {
            "model": self.model,
            "version": self.version,
            "platforms": {
                platform: {
                    "tasks": len(tasks),
                    "candidates": sum(task.candidates for task in tasks),
                    **{name: _without_nan(figure) for name, figure in summarise(tasks).items()},
                }
                for platform, tasks in self.platforms.items()
            },
            "tasks": [_without_nan(task) for task in self.tasks],
            "left_out": dict(self.left_out),
        }


def evaluate(
    scorer: Scorer, records: Iterable[tuple[str | None, Record]], min_candidates: int = 16
) -> Evaluation:
    """Score records with a version and rank each task's candidates.

    Exact duplicates (same task, same primitives) are one candidate with the costs of all, of which the median counts.
    A workload on CPU targets and on GPU targets is two tasks, whatever the platform is called.
    A task whose platform the version was not trained on is scored by the kind of its target.

    Parameters
    ----------
    scorer : Scorer
        The version.
    records : iterable of (str or None, Record)
        Platform and record; failed runs do not count, nor do records without a platform.
    min_candidates : int
        Tasks with fewer are left out: chance ranks them well.
    """
    found = Evaluation(scorer.manifest.model, scorer.manifest.version)
    tasks: dict[tuple[str, str, str], _Candidates] = {}
    for platform, record in records:
        if platform is None:
            found.left_out["records without a platform"] += 1
            continue
        if not record.is_valid:
            found.left_out["failed runs"] += 1
            continue
        key = (platform, record.task.workload, platform_kind(record.task.target) or "")
        tasks.setdefault(key, _Candidates(record)).add(record)
    for (platform, workload, _), candidates in sorted(tasks.items()):
        scores, costs = _score(scorer, platform, candidates, found)
        if len(costs) < min_candidates:
            found.left_out[f"tasks of fewer than {min_candidates} candidates"] += 1
            continue
        found.tasks.append(figures_of(platform, workload, scores, costs))
    return found


class _Candidates:
    """The distinct candidates of a task."""

    def __init__(self, record: Record) -> None:
        self.task = record.task
        self.costs: dict[tuple[Primitive, ...], list[float]] = {}

    def add(self, record: Record) -> None:
        self.costs.setdefault(record.primitives, []).extend(record.costs)

    def request(self, platform: str | None) -> PredictRequest:
        return request_of(self.task, self.costs, platform)


def _score(scorer: Scorer, platform: str, candidates: _Candidates, found: Evaluation) -> tuple[Any, Any]:
    """Return the scores and costs of the candidates that have a score."""
    try:
        scored = scorer.score(candidates.request(scorer.manifest.known(platform)), chunk=64)
    except RequestFault as error:
        log.warning("%s %.60s: %s", platform, candidates.task.workload_key, error)
        found.left_out["candidates of a target that the version does not know"] += len(candidates.costs)
        return np.empty(0), np.empty(0)
    is_scored = np.isfinite(scored.scores)
    if unscored := int(np.count_nonzero(~is_scored)):
        found.left_out["candidates that the version cannot score"] += unscored
    costs = np.array([np.median(costs) for costs in candidates.costs.values()])
    counts = is_plausible(candidates.task.workload, costs)
    if outliers := int(np.count_nonzero(~counts)):
        found.left_out["candidates whose cost cannot be a run time"] += outliers
    return scored.scores[is_scored & counts], costs[is_scored & counts]


def _without_nan(figures: Interval | TaskFigures) -> dict[str, Any]:
    """Return figures by name, with None for those that are NaN: JSON has no NaN."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in dataclasses.asdict(figures).items()
    }


def _shown(figure: Interval) -> str:
    return f"{figure.value:.3f} ({figure.low:.3f}-{figure.high:.3f})"
