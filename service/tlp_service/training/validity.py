"""Training sets for the chance that a candidate builds and runs at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tlp_service.ranking.ranking import Ranking
from tlp_service.training.dataset import TrainingSet, TrainingTask

#: Cost of a failed run in seconds, as TVM writes it. It gives a failed run the label 1e-10; a valid run has 1.
_FAILED_S = 1e10


def validity_set(training_set: TrainingSet) -> TrainingSet:
    """Return the set with the failed candidates of its tasks beside the others, of which one is as good as another."""
    return replace(training_set, tasks=tuple(map(_with_failed, training_set.tasks)))


def has_failures(training_set: TrainingSet) -> bool:
    """Return whether there is anything to learn from."""
    return any(len(task.failed) for task in training_set.tasks)


def validity_figures(ranking: Ranking, tested: TrainingSet) -> dict[str, float]:
    """Return what a model card says, from the ranking of a `validity_set`.

    A pair with different costs has one valid and one failed candidate of a task, so the pair accuracy is the area
    under the ROC curve.
    """
    with_both = sum(len(task.failed) > 0 for task in tested.tasks)
    return {"auc": ranking.pair_accuracy, "tasks": with_both}


def _with_failed(task: TrainingTask) -> TrainingTask:
    valid, failed = len(task.costs), len(task.failed)
    return replace(
        task,
        positions=np.repeat(task.positions[:1], valid + failed, axis=0),  # that of the task
        values=np.concatenate([task.values, task.failed]) if failed else task.values,
        costs=np.repeat([1.0, _FAILED_S], [valid, failed]),
    )
