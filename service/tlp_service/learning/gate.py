"""Whether a candidate version may take the place of the serving one: pure arithmetic on figures of the same held-back tasks.

A candidate is accepted if it ranks no platform worse, beyond what chance makes of the tasks at hand, and at least one better. What cannot be
told from chance does not go live: a series of such steps could lead anywhere. To be worse, a figure must be so beyond its own 95 % interval;
to be better, beyond that of all figures together (Bonferroni), or among twenty figures one would always seem better.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tlp_service.evaluation.figures import TaskFigures

#: Resamples of the bootstrap over tasks, and the share of them that an interval of 95 % leaves out at either end.
_RESAMPLES, _TAIL = 4000, 0.025
#: Fewest tasks of which a platform's interval says something. With fewer, a fall of `_FEW_FALL` on the mean of them counts as worse.
FEW_TASKS, _FEW_FALL = 5, 0.05

Measure = Literal["pair_accuracy", "top1"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure of both versions on the tasks of a platform, and the interval of what it gains.

    Parameters
    ----------
    platform, measure : str
        What is compared: pair accuracy or top-1, as means over tasks.
    tasks : int
        Held-back tasks.
    serving, candidate : float
        The figures.
    low, high : float
        95 % interval of candidate minus serving, by bootstrap over tasks (the same tasks for both versions).
    sure : float
        Low end of the interval that all figures of a verdict have together.
    """

    platform: str
    measure: Measure
    tasks: int
    serving: float
    candidate: float
    low: float
    high: float
    sure: float

    @property
    def is_worse(self) -> bool:
        """Whether the candidate ranks worse, beyond chance."""
        if self.tasks < FEW_TASKS:
            return self.candidate - self.serving < -_FEW_FALL
        return self.high < 0

    @property
    def is_better(self) -> bool:
        """Whether it ranks better, beyond chance; a few tasks show nothing of the kind."""
        return self.tasks >= FEW_TASKS and self.sure > 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate says of a candidate version.

    Parameters
    ----------
    is_accepted : bool
        Whether it may serve.
    reason : str
        Why, or why not.
    comparisons : tuple of Comparison
        All figures.
    """

    is_accepted: bool
    reason: str
    comparisons: tuple[Comparison, ...]


def judge(serving: Sequence[TaskFigures], candidate: Sequence[TaskFigures], seed: int = 0) -> Verdict:
    """Return whether a candidate may take the serving version's place.

    Parameters
    ----------
    serving, candidate : sequence of TaskFigures
        Of both versions, on held-back tasks; those that only one has a figure of are a fault of the candidate.
    seed : int
        Of the bootstrap.
    """
    before, after = _by_task(serving), _by_task(candidate)
    lacking = sorted(set(before) - set(after))
    if lacking:
        platform, workload = lacking[0]
        return Verdict(
            False, f"it has no finite scores for {len(lacking)} tasks, as {workload} on {platform}", ()
        )
    tasks: dict[str, list[tuple[TaskFigures, TaskFigures]]] = defaultdict(list)
    for name, figures in before.items():
        tasks[name[0]].append((figures, after[name]))
    tail = _TAIL / max(1, len(tasks) * len(_MEASURES))
    comparisons = tuple(
        _compare(platform, measure, pairs, tail, seed)
        for platform, pairs in sorted(tasks.items())
        for measure in _MEASURES
    )
    worse = [c for c in comparisons if c.is_worse]
    better = [c for c in comparisons if c.is_better]
    if worse:
        return Verdict(False, "worse: " + "; ".join(map(_told, worse)), comparisons)
    if not better:
        return Verdict(False, "not better than chance on any platform", comparisons)
    return Verdict(True, "better: " + "; ".join(map(_told, better)), comparisons)


_MEASURES: tuple[Measure, ...] = ("pair_accuracy", "top1")


def _by_task(figures: Sequence[TaskFigures]) -> dict[tuple[str, str], TaskFigures]:
    # A task whose candidates all ran equally long has no pairs, and nothing to compare.
    return {(f.platform, f.workload): f for f in figures if not math.isnan(f.pair_accuracy)}


def _compare(
    platform: str,
    measure: Measure,
    tasks: Sequence[tuple[TaskFigures, TaskFigures]],
    tail: float,
    seed: int,
) -> Comparison:
    values = np.array([[_value(before, measure), _value(after, measure)] for before, after in tasks])
    gains = values[:, 1] - values[:, 0]
    drawn = np.random.default_rng(seed).integers(0, len(gains), (_RESAMPLES, len(gains)))
    low, high, sure = np.quantile(gains[drawn].mean(axis=1), [_TAIL, 1 - _TAIL, tail]).tolist()
    serving, candidate = values.mean(axis=0).tolist()
    return Comparison(platform, measure, len(tasks), serving, candidate, low, high, sure)


def _value(figures: TaskFigures, measure: Measure) -> float:
    return figures.pair_accuracy if measure == "pair_accuracy" else figures.best_s / figures.top1_s


def _told(comparison: Comparison) -> str:
    name = "pairs" if comparison.measure == "pair_accuracy" else "top-1"
    return (
        f"{comparison.platform} {name} {comparison.candidate:.3f}, serving {comparison.serving:.3f} "
        f"({comparison.low:+.3f} to {comparison.high:+.3f}, {comparison.tasks} tasks)"
    )
