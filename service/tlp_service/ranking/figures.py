"""Figures of one task's ranking, and their summary over tasks with intervals."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tlp_service.ranking.ranking import random_ranking, top_k_cost

Floats = npt.NDArray[np.float64]

#: Number of bootstrap resamples, and the share of them beyond each end of an interval.
_RESAMPLES, _TAIL = 1000, 0.025

#: Number of candidates per block when counting pairs; bounds the memory for tasks with thousands of candidates.
_ROWS = 512


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """How well scores rank the candidates of one task.

    Parameters
    ----------
    platform, workload : str
        Platform and workload key of the task.
    candidates : int
        Measured candidates that have a score.
    best_s, top1_s, top5_s : float
        Best cost of the task, and the best among the one or five best-scored, in seconds.
    random_top1, random_top5 : float
        Expectation of best_s over the best of one or five candidates that are drawn.
    pair_accuracy : float
        Share of the pairs with different costs that the scores order right; a tie counts half.
    kendall_tau : float
        Kendall's tau-b of scores and speeds (Kendall 1945).
    ndcg : float
        Normalised discounted cumulative gain over all candidates (Järvelin, Kekäläinen 2002), with the label as gain.
    label_rmse : float
        Root mean squared difference of score and label, best cost over cost. Rank losses do not aim at it.
    """

    platform: str
    workload: str
    candidates: int
    best_s: float
    top1_s: float
    top5_s: float
    random_top1: float
    random_top5: float
    pair_accuracy: float
    kendall_tau: float
    ndcg: float
    label_rmse: float


def figures_of(platform: str, workload: str, scores: Floats, costs: Floats) -> TaskFigures:
    """Return the figures of a task of two or more candidates, given scores and costs in seconds."""
    right, wrong, tied, speed_pairs, score_pairs = _count_pairs(scores, costs)
    either = float(np.sqrt(speed_pairs * score_pairs))
    labels = costs.min() / costs
    discounts = 1 / np.log2(np.arange(2, len(costs) + 2))
    # Equal scores are ordered slowest first, as in `top_k_cost`: a constant score must gain nothing.
    gained = labels[np.lexsort((-costs, -scores))] @ discounts
    chance = random_ranking([costs])
    return TaskFigures(
        platform=platform,
        workload=workload,
        candidates=len(costs),
        best_s=float(costs.min()),
        top1_s=top_k_cost(scores, costs, 1),
        top5_s=top_k_cost(scores, costs, 5),
        random_top1=chance.top1_mean,
        random_top5=chance.top5_mean,
        pair_accuracy=(right + 0.5 * tied) / speed_pairs if speed_pairs else float("nan"),
        kendall_tau=(right - wrong) / either if either else float("nan"),
        ndcg=float(gained / (np.sort(labels)[::-1] @ discounts)),
        label_rmse=float(np.sqrt(np.mean((scores - labels) ** 2))),
    )


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure over tasks and its 95 % interval, by bootstrap over tasks."""

    value: float
    low: float
    high: float


#: Metrics of a summary. Those of TLP (arXiv 2211.03578, section 6.1) pool the seconds of all tasks; those of TenSet
#: average over tasks.
_SUMMARIES: dict[str, Callable[[dict[str, Floats]], Floats]] = {
    "top1_mean": lambda c: np.mean(c["best_s"] / c["top1_s"], axis=-1),
    "top5_mean": lambda c: np.mean(c["best_s"] / c["top5_s"], axis=-1),
    "top1_pooled": lambda c: c["best_s"].sum(-1) / c["top1_s"].sum(-1),
    "top5_pooled": lambda c: c["best_s"].sum(-1) / c["top5_s"].sum(-1),
    "pair_accuracy": lambda c: np.nanmean(c["pair_accuracy"], axis=-1),
    "kendall_tau": lambda c: np.nanmean(c["kendall_tau"], axis=-1),
    "ndcg": lambda c: np.mean(c["ndcg"], axis=-1),
    "label_rmse": lambda c: np.mean(c["label_rmse"], axis=-1),
    "random_top1_mean": lambda c: np.mean(c["random_top1"], axis=-1),
    "random_top5_mean": lambda c: np.mean(c["random_top5"], axis=-1),
}

_COLUMNS = (
    "best_s",
    "top1_s",
    "top5_s",
    "random_top1",
    "random_top5",
    "pair_accuracy",
    "kendall_tau",
    "ndcg",
    "label_rmse",
)


def summarise(tasks: Sequence[TaskFigures], seed: int = 0) -> dict[str, Interval]:
    """Return the figures over one or more tasks, by name."""
    columns = {name: np.array([getattr(task, name) for task in tasks]) for name in _COLUMNS}
    drawn = np.random.default_rng(seed).integers(0, len(tasks), (_RESAMPLES, len(tasks)))
    resampled = {name: column[drawn] for name, column in columns.items()}
    summary = {}
    for name, figure in _SUMMARIES.items():
        with warnings.catch_warnings():
            # A figure that no task has is NaN: Kendall's tau, where all scores are equal.
            warnings.simplefilter("ignore", RuntimeWarning)
            low, high = np.nanquantile(figure(resampled), [_TAIL, 1 - _TAIL])
            summary[name] = Interval(float(figure(columns)), float(low), float(high))
    return summary


def _count_pairs(scores: Floats, costs: Floats) -> tuple[int, int, int, int, int]:
    """Count pairs: ordered correctly, incorrectly, with equal scores, with different costs, with different scores."""
    right = wrong = tied = different_scores = 0
    for first in range(0, len(costs), _ROWS):
        is_faster = costs[first : first + _ROWS, None] < costs[None, :]
        difference = scores[first : first + _ROWS, None] - scores[None, :]
        right += int(np.count_nonzero(is_faster & (difference > 0)))
        wrong += int(np.count_nonzero(is_faster & (difference < 0)))
        tied += int(np.count_nonzero(is_faster & (difference == 0)))
        different_scores += int(np.count_nonzero(difference > 0))
    return right, wrong, tied, right + wrong + tied, different_scores
