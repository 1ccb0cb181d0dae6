"""Whether a candidate version may take the place of the serving one: pure arithmetic on scores of the same held-back candidates.

A candidate is accepted if it ranks no platform worse, beyond what chance makes of the records at hand, and at least one better. What cannot be
told from chance does not go live: a series of such steps could lead anywhere. Beyond chance is beyond the 95 % interval. Worse in either
figure counts; better counts in pair accuracy only. Every candidate has its part in it, while top-1 hangs on a few, and were one of two
figures enough, chance would have two tries.

Intervals are by bootstrap over the candidates inside each task and, where a platform has tasks enough to stand for others, over tasks, too.
With few tasks (two operators are tuned) the verdict is about those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

#: Resamples of the bootstrap, and the share of them that an interval of 95 % leaves out at either end.
_RESAMPLES, _TAIL = 1000, 0.025
#: Tasks from which on a platform's are resampled, too.
_MANY_TASKS = 5
#: Candidates of a task that are compared; more would be drawn from, the same for both versions.
_MAX_CANDIDATES = 256

Measure = Literal["pair_accuracy", "top1"]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Held-back candidates of a task, scored by both versions.

    Parameters
    ----------
    platform, workload : str
        What the task is.
    costs, serving, candidate : ndarray, shape (candidates,)
        Measured seconds, and the scores of the two versions.
    """

    platform: str
    workload: str
    costs: Floats
    serving: Floats
    candidate: Floats


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure of both versions on a platform, and the interval of what the candidate gains.

    Parameters
    ----------
    platform, measure : str
        What is compared: pair accuracy or top-1, as means over tasks.
    tasks : int
        Held-back tasks.
    serving, candidate : float
        The figures.
    low, high : float
        95 % interval of candidate minus serving.
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
        """Whether the candidate ranks worse, beyond chance."""
        return self.high < 0

    @property
    def is_better(self) -> bool:
        """Whether it ranks better, beyond chance, in the figure that this is judged by."""
        return self.measure == "pair_accuracy" and self.low > 0


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
    comparisons: tuple[Comparison, ...] = ()


def judge(tasks: Sequence[HeldBack], seed: int = 0) -> Verdict:
    """Return whether a candidate may take the serving version's place.

    Parameters
    ----------
    tasks : sequence of HeldBack
        Those with fewer than two candidates of different cost show nothing and are left out.
    seed : int
        Of the bootstrap.
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
    """Return pair accuracy and top-1 of both versions, shape (2, 2, 1 + resamples); the first are of all candidates as they are."""
    rows = random.permutation(len(task.costs))[:_MAX_CANDIDATES]
    costs, count = task.costs[rows], len(rows)
    drawn = random.multinomial(count, np.full(count, 1 / count), _RESAMPLES)
    times = np.concatenate([np.ones((1, count)), drawn])  # how often each candidate is among a resample's
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
    """Return the sum of pairs of candidates, each as often as both are there, shape (resamples,)."""
    total: Floats = ((times @ pairs) * times).sum(axis=1)
    return total


def _told(comparison: Comparison) -> str:
    name = "pairs" if comparison.measure == "pair_accuracy" else "top-1"
    return (
        f"{comparison.platform} {name} {comparison.candidate:.3f}, serving {comparison.serving:.3f} "
        f"({comparison.low:+.3f} to {comparison.high:+.3f}, {comparison.tasks} tasks)"
    )
