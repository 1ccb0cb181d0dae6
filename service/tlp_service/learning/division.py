"""What of a platform's records is learned from, and what is held back for the gate."""

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

#: Candidates of a platform that are held back for the gate, of each task the same share, beside the tasks of the test part.
_HELD_BACK = 400
#: Least and largest share of its candidates.
_LEAST_HELD, _MOST_HELD = 0.2, 0.5
#: Candidates of a task, and different costs among them, from which on it is learned from: with fewer it cannot be divided into what is learned
#: from and what is held back, each with an order.
_MIN_CANDIDATES = 4
TOO_FEW = "too few records of any task to learn from some and hold others back"


def check_costs(records: Sequence[Record]) -> None:
    """Refuse valid records of a platform that show no order, before their features are made, which takes most of the time before training.

    Raises
    ------
    Refusal
        If there is no task with enough candidates of different costs.
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
    """Return what is learned from and what is held back: all of the test part's tasks, and some candidates of each of the others.

    Of few candidates half are held back: what is learned from the others is little, and only many can show that it is better.
    """
    share = min(_MOST_HELD, max(_LEAST_HELD, _HELD_BACK / max(1, whole.candidates)))
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
    """Return a number in [0, 1) that is drawn by what the network reads: candidates that are alike to it are on one side."""
    return int.from_bytes(hashlib.blake2b(values.tobytes(), digest_size=8).digest(), "big") / 2**64
