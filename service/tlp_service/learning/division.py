"""Divides the records of a platform into a training part and a part that is held back for the gate."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tlp_client.records import Record
from tlp_service.learning.outcome import Refusal
from tlp_service.records.split import part_of
from tlp_service.training.dataset import TrainingSet, TrainingTask

#: Target number of candidates per platform to hold back for the gate, besides all tasks of the test part.
#: The same share of each other task is held back.
_HELD_BACK = 400
#: Bounds of the share of each task's candidates that is held back.
_MIN_HELD, _MAX_HELD = 0.2, 0.5
#: Minimum number of candidates, and of different costs, of at least one task.
#: With fewer, the training part and the held-back part cannot both have candidates to rank.
_MIN_CANDIDATES = 4
#: Reason for refusing a platform that has no task large enough to divide.
TOO_FEW = "no task has enough records to train on some and hold others back"


def check_costs(records: Sequence[Record]) -> None:
    """Refuse records that cannot be ranked.

    This check runs before features are computed, because computing them takes most of the time.

    Raises
    ------
    Refusal
        If no task has enough candidates with different costs.
    """
    candidates, costs = defaultdict(set), defaultdict(set)
    for record in records:
        candidates[record.task.workload].add(record.primitives)
        costs[record.task.workload].add(record.costs)
    many = [workload for workload, found in candidates.items() if len(found) >= _MIN_CANDIDATES]
    if not many:
        raise Refusal("refused", TOO_FEW)
    if all(len(costs[workload]) < _MIN_CANDIDATES for workload in many):
        raise Refusal("refused", f"no task with as many as {_MIN_CANDIDATES} different costs")


def divide(whole: TrainingSet, seed: int) -> tuple[TrainingSet, TrainingSet]:
    """Return the training part and the held-back part.

    The held-back part has all tasks of the test part, and a share of the candidates of each other task.
    If there are few candidates, half of them are held back: proving a small improvement takes many candidates,
    while a network learns little from few candidates anyway.
    """
    share = min(_MAX_HELD, max(_MIN_HELD, _HELD_BACK / max(1, whole.candidates)))
    learned: list[TrainingTask] = []
    held: list[TrainingTask] = []
    for task in whole.tasks:
        is_held = np.ones(len(task.costs), dtype=bool)
        if part_of(task.workload, seed) != "test":
            is_held = np.array([_digest(values) < share for values in task.values])
        for found, rows, failed in ((learned, ~is_held, task.failed), (held, is_held, task.failed[:0])):
            if rows.sum() > 1:
                found.append(dataclasses.replace(task.some(np.flatnonzero(rows)), failed=failed))
    return dataclasses.replace(whole, tasks=tuple(learned)), dataclasses.replace(whole, tasks=tuple(held))


def _digest(values: npt.NDArray[np.float16]) -> float:
    """Return a hash of the network's inputs as a number in [0, 1), so that identical inputs fall on the same side."""
    return int.from_bytes(hashlib.blake2b(values.tobytes(), digest_size=8).digest(), "big") / 2**64
