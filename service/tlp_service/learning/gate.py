"""The gate: decides whether a candidate version may replace the serving version.

The gate compares the scores of both versions for the same held-back candidates. The comparison is pure arithmetic.

A candidate version is accepted if it ranks at least one platform significantly better and none significantly worse.
A difference is significant if the 95 % interval of the gain excludes zero.
A change that is not significant is not served, since a series of such changes could degrade the ranking.

A loss counts in pair accuracy and in top-1; a gain counts in pair accuracy only. Every candidate contributes to pair
accuracy, whereas top-1 depends on a few. Accepting a gain in either one would give chance two tries.

The intervals come from a bootstrap over the candidates of each task. If a platform has enough tasks to represent
others, the bootstrap resamples tasks, too. With fewer tasks, the verdict holds for these tasks only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

#: Number of bootstrap resamples, and the share of them beyond each end of the 95 % interval.
_RESAMPLES, _TAIL = 1000, 0.025
#: Minimum number of tasks of a platform at which the bootstrap resamples tasks, too.
_MANY_TASKS = 5
#: Maximum number of candidates per task to compare. From a larger task, one random sample serves both versions.
_MAX_CANDIDATES = 256

Measure = Literal["pair_accuracy", "top1"]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Held-back candidates of a task, scored by both versions.

    Parameters
    ----------
    platform, workload : str
        The platform and the workload key of the task.
    costs, serving, candidate : ndarray, shape (candidates,)
        Measured costs in seconds, scores of the serving version, and scores of the candidate version.
    """

    platform: str
    workload: str
    costs: Floats
    serving: Floats
    candidate: Floats


@dataclass(frozen=True, slots=True)
class Comparison:
    """A ranking metric of both versions on a platform, with the interval of the gain.

    Parameters
    ----------
    platform : str
        The platform of the tasks.
    measure : str
        The metric: pair accuracy or top-1, as the mean over tasks.
    tasks : int
        Number of held-back tasks.
    serving, candidate : float
        The metric of the serving version and of the candidate version.
    low, high : float
        95 % interval of the gain (candidate minus serving).
    """

    platform: str
    measure: Measure
    tasks: int
    serving: float
    candidate: float
    low: float
    high: float

    @property
    def is_worse(self) -> bool:
        """Whether the candidate version ranks significantly worse."""
        return self.high < 0

    @property
    def is_better(self) -> bool:
        """Whether the candidate version ranks significantly better; only pair accuracy counts."""
        return self.measure == "pair_accuracy" and self.low > 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The gate's verdict on a candidate version.

    Parameters
    ----------
    is_accepted : bool
        Whether the candidate version may serve.
    reason : str
        The reason for accepting or rejecting it.
    comparisons : tuple of Comparison
        The comparisons that the verdict rests on, for each platform and metric.
    """

    is_accepted: bool
    reason: str
    comparisons: tuple[Comparison, ...] = ()


def judge(tasks: Sequence[HeldBack], seed: int = 0) -> Verdict:
    """Return whether a candidate version may replace the serving version.

    Parameters
    ----------
    tasks : sequence of HeldBack
        Held-back tasks. A task without two different costs is left out, since it has no pair to order.
    seed : int
        Seed of the bootstrap.
    """
    for task in tasks:
        if not np.isfinite(task.candidate).all():
            return Verdict(False, f"a score that is not finite, of {task.workload} on {task.platform}")
    by_platform: dict[str, list[HeldBack]] = defaultdict(list)
    for task in tasks:
        if len(np.unique(task.costs)) > 1 and np.isfinite(task.serving).all():
            by_platform[task.platform].append(task)
    if not by_platform:
        return Verdict(False, "nothing is held back that could show a difference")
    random = np.random.default_rng(seed)
    comparisons = tuple(
        comparison
        for platform, own in sorted(by_platform.items())
        for comparison in _compare(platform, own, random)
    )
    if worse := [c for c in comparisons if c.is_worse]:
        return Verdict(False, "worse: " + "; ".join(map(_told, worse)), comparisons)
    if better := [c for c in comparisons if c.is_better]:
        return Verdict(True, "better: " + "; ".join(map(_told, better)), comparisons)
    return Verdict(False, "not better than chance on any platform", comparisons)


def _compare(platform: str, tasks: Sequence[HeldBack], random: np.random.Generator) -> list[Comparison]:
    values = np.stack(
        [_resampled(task, random) for task in tasks]
    )  # (tasks, versions, measures, 1 + resamples)
    serving, candidate = values[..., 0].mean(axis=0)
    gains = (values[:, 1] - values[:, 0])[..., 1:]
    chosen = np.arange(len(tasks))[:, None].repeat(_RESAMPLES, axis=1)
    if len(tasks) >= _MANY_TASKS:
        chosen = random.integers(0, len(tasks), chosen.shape)
    found = []
    for n, measure in enumerate(_MEASURES):
        means = np.take_along_axis(gains[:, n], chosen, axis=0).mean(axis=0)
        low, high = np.quantile(means, [_TAIL, 1 - _TAIL]).tolist()
        figures = (float(serving[n]), float(candidate[n]))
        found.append(Comparison(platform, measure, len(tasks), *figures, low, high))
    return found


_MEASURES: tuple[Measure, ...] = ("pair_accuracy", "top1")


def _resampled(task: HeldBack, random: np.random.Generator) -> Floats:
    """Return pair accuracy and top-1 of both versions, shape (versions, measures, 1 + resamples).

    Entry 0 of the last axis is the value for the candidates without resampling.
    """
    rows = random.permutation(len(task.costs))[:_MAX_CANDIDATES]
    costs, count = task.costs[rows], len(rows)
    drawn = random.multinomial(count, np.full(count, 1 / count), _RESAMPLES)
    times = np.concatenate([np.ones((1, count)), drawn])  # how often each resample holds each candidate
    is_faster = (costs[:, None] < costs[None, :]).astype(float)
    pairs = _weighted(times, is_faster)
    best = np.where(times > 0, costs, np.inf).min(axis=1)
    found = []
    for scores in (task.serving[rows], task.candidate[rows]):
        difference = scores[:, None] - scores[None, :]
        right = is_faster * ((difference > 0) + 0.5 * (difference == 0))
        # A resample of one candidate has no pairs; chance orders half of them right.
        ordered = _weighted(times, right)
        accuracy = np.divide(ordered, pairs, out=np.full(len(pairs), 0.5), where=pairs > 0)
        # Equal scores are ordered slowest first: a constant score must gain nothing.
        order = np.lexsort((-costs, -scores))
        first = np.argmax(times[:, order] > 0, axis=1)
        found.append([accuracy, best / costs[order][first]])
    return np.array(found)


def _weighted(times: Floats, pairs: Floats) -> Floats:
    """Return the weighted sum over pairs of candidates, shape (resamples,).

    The weight of a pair is the number of times that a resample holds both candidates.
    """
    total: Floats = ((times @ pairs) * times).sum(axis=1)
    return total


def _told(comparison: Comparison) -> str:
    name = "pairs" if comparison.measure == "pair_accuracy" else "top-1"
    return (
        f"{comparison.platform} {name} {comparison.candidate:.3f}, serving {comparison.serving:.3f} "
        f"({comparison.low:+.3f} to {comparison.high:+.3f}, {comparison.tasks} tasks)"
    )
