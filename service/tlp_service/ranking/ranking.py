"""How well scores rank the candidates of a task, by the definitions of the field."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Figures over many tasks; each in (0, 1], higher is better.

    Parameters
    ----------
    tasks : int
        Tasks that could be ranked: two or more measured candidates.
    top1_pooled, top5_pooled : float
        TLP's score (arXiv 2211.03578, section 6.1) with equal weights: sum of the tasks' best costs over the
        sum of the best costs among the k best-scored.
    top1_mean, top5_mean : float
        The same ratio per task, averaged over tasks (TenSet's form).
    pair_accuracy : float
        Share of the pairs with different costs that the scores order right; mean over tasks.
    """

    tasks: int
    top1_pooled: float
    top5_pooled: float
    top1_mean: float
    top5_mean: float
    pair_accuracy: float

    @property
    def quality(self) -> float:
        """One figure to choose between epochs: the mean of top-1, top-5 and pair accuracy over tasks."""
        return (self.top1_mean + self.top5_mean + self.pair_accuracy) / 3


def rank_tasks(tasks: Iterable[tuple[Floats, Floats]]) -> Ranking:
    """Return the figures of scores, given (scores, costs in seconds) for each task."""
    rows = []
    for scores, costs in tasks:
        if len(costs) < 2:
            continue
        best = float(costs.min())
        rows.append(
            (best, top_k_cost(scores, costs, 1), top_k_cost(scores, costs, 5), pair_accuracy(scores, costs))
        )
    return _summary(rows)


def random_ranking(costs_by_task: Iterable[Floats]) -> Ranking:
    """Return the figures that random scores have in expectation, computed exactly.

    The mean forms average the expected ratio, the pooled forms divide by the expected cost.
    """
    rows, ratios = [], []
    for costs in costs_by_task:
        if len(costs) < 2:
            continue
        best = float(costs.min())
        rows.append((best, _expected_best(costs, 1), _expected_best(costs, 5), 0.5))
        # mean of ratios: E[best / cost] = best * E[1 / cost], and 1 / min(costs) = max(1 / costs)
        ratios.append((_expected_best_ratio(best, costs, 1), _expected_best_ratio(best, costs, 5)))
    pooled = _summary(rows)
    top1_mean, top5_mean = np.mean(ratios, axis=0) if ratios else (np.nan, np.nan)
    return Ranking(
        pooled.tasks, pooled.top1_pooled, pooled.top5_pooled, float(top1_mean), float(top5_mean), 0.5
    )


def top_k_cost(scores: Floats, costs: Floats, k: int) -> float:
    """Return the best cost among the k best-scored; equal scores are ordered slowest first."""
    order = np.lexsort((-costs, -scores))
    return float(costs[order[:k]].min())


def pair_accuracy(scores: Floats, costs: Floats) -> float:
    """Return the share of pairs with different costs that the scores order right; a tie counts half."""
    faster = costs[:, None] < costs[None, :]
    pairs = int(faster.sum())
    if pairs == 0:
        return float("nan")
    right = (scores[:, None] > scores[None, :]) & faster
    tied = (scores[:, None] == scores[None, :]) & faster
    return float((right.sum() + 0.5 * tied.sum()) / pairs)


def _summary(rows: Sequence[tuple[float, float, float, float]]) -> Ranking:
    if not rows:
        nan = float("nan")
        return Ranking(0, nan, nan, nan, nan, nan)
    best, top1, top5, pairs = np.array(rows).T
    return Ranking(
        tasks=len(rows),
        top1_pooled=float(best.sum() / top1.sum()),
        top5_pooled=float(best.sum() / top5.sum()),
        top1_mean=float(np.mean(best / top1)),
        top5_mean=float(np.mean(best / top5)),
        pair_accuracy=float(np.nanmean(pairs)),
    )


def _expected_best(costs: Floats, k: int) -> float:
    return float(_weights_of_minimum(len(costs), k) @ np.sort(costs))


def _expected_best_ratio(best: float, costs: Floats, k: int) -> float:
    return float(_weights_of_minimum(len(costs), k) @ (best / np.sort(costs)))


def _weights_of_minimum(n: int, k: int) -> Floats:
    """Return P(the i-th smallest of n is the smallest of k drawn without replacement), i = 0 … n-1."""
    k = min(k, n)
    draws = comb(n, k)
    return np.array([comb(n - 1 - i, k - 1) / draws for i in range(n)])
