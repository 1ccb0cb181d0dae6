"""Training sets: the records of many logs as arrays, split by workload."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tlp_client.logs import RefusedLine
from tlp_client.primitives import Primitive
from tlp_client.records import Record
from tlp_client.tasks import PlatformKind, platform_kind
from tlp_service.errors import BadRecords
from tlp_service.features.published import PublishedFeatures
from tlp_service.records.files import log_records
from tlp_service.records.platforms import PlatformOf
from tlp_service.records.split import check_no_leak


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """The candidates of one workload on one platform.

    Parameters
    ----------
    platform, workload : str
        What the task is.
    positions : ndarray of int32, shape (candidates, steps)
        Rows of the set's table.
    costs : ndarray of float64, shape (candidates,)
        Median of each record's costs, in seconds.
    """

    platform: str
    workload: str
    positions: npt.NDArray[np.int32]
    costs: npt.NDArray[np.float64]

    @property
    def labels(self) -> npt.NDArray[np.float32]:
        """Best cost of the task over each candidate's, in (0, 1] (TLP, section 4.4)."""
        return np.asarray(self.costs.min() / self.costs, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """All tasks of one platform kind over one table of distinct rows."""

    table: npt.NDArray[np.float32]
    tasks: tuple[TrainingTask, ...]

    @property
    def candidates(self) -> int:
        """Candidates over all tasks."""
        return sum(len(task.costs) for task in self.tasks)

    @property
    def platforms(self) -> tuple[str, ...]:
        """Names of the platforms, sorted."""
        return tuple(sorted({task.platform for task in self.tasks}))


@dataclass(slots=True)
class ImportReport:
    """What became of the lines that were read."""

    counts: Counter[str] = field(default_factory=Counter)
    refused: list[RefusedLine] = field(default_factory=list)


def read_records(
    paths: Iterable[Path], platform_of: PlatformOf, report: ImportReport
) -> Iterator[tuple[str, Record]]:
    """Yield ``(platform, record)`` for the valid records of the logs; the rest is counted by cause."""
    refused: list[RefusedLine] = []
    for platform, record in log_records(paths, platform_of, refused):
        if not record.is_valid:
            report.counts["left out: failed or implausible run"] += 1
        elif platform is None:
            report.counts["left out: no platform"] += 1
        else:
            report.counts[f"used: {platform}"] += 1
            yield platform, record
    report.counts.update(f"left out: refused line, {line.cause}" for line in refused)
    report.refused.extend(refused)


def build_sets(
    records: Iterable[tuple[str, Record]],
    features: dict[PlatformKind, PublishedFeatures],
    report: ImportReport,
    min_candidates: int = 2,
) -> dict[PlatformKind, TrainingSet]:
    """Gather records into one training set a platform kind.

    Exact duplicates (same task, same primitives) are one candidate with the costs of all. A record with a
    primitive that the vocabulary lacks is left out and counted; so is a task with fewer candidates
    than can be ranked.
    """
    builders = {kind: _Builder(f) for kind, f in features.items()}
    for platform, record in records:
        kind = platform_kind(record.task.target)
        if kind in builders:
            builders[kind].add(platform, record)
        else:
            report.counts["left out: target of another platform kind"] += 1
    sets = {}
    for kind, builder in builders.items():
        built = builder.build(report, min_candidates)
        if built.tasks:
            sets[kind] = built
    return sets


class _Builder:
    """Collects the records of one platform kind."""

    def __init__(self, features: PublishedFeatures) -> None:
        self.features = features
        self.index: dict[Primitive, int] = {}
        self.costs: dict[tuple[str, str], dict[tuple[int, ...], list[float]]] = defaultdict(dict)

    def add(self, platform: str, record: Record) -> None:
        index = self.index
        candidate = tuple(index.setdefault(p, len(index)) for p in record.primitives)
        self.costs[platform, record.task.workload].setdefault(candidate, []).extend(record.costs)

    def build(self, report: ImportReport, min_candidates: int) -> TrainingSet:
        table, errors = self.features.rows(list(self.index))
        tasks = []
        for (platform, workload), candidates in sorted(self.costs.items()):
            good = {c: costs for c, costs in candidates.items() if errors.keys().isdisjoint(c)}
            if len(good) < len(candidates):
                report.counts["left out: primitive without a row"] += len(candidates) - len(good)
            if 0 < len(good) < min_candidates:
                report.counts["left out: task with too few candidates"] += len(good)
            if len(good) < min_candidates:
                continue
            lengths = np.array([len(c) for c in good], dtype=np.int64)
            indices = np.array([i for c in good for i in c], dtype=np.int64)
            positions = self.features.positions(indices, lengths).astype(np.int32)
            costs = np.array([np.median(c) for c in good.values()])
            tasks.append(TrainingTask(platform, workload, positions, costs))
        return TrainingSet(table, tuple(tasks))


def without_large_numbers(training_set: TrainingSet, limit: float) -> TrainingSet:
    """Return the set without the tasks whose rows hold a number above `limit`.

    The published rows hold raw numbers, and extents reach 3e8. The gradient of one such candidate outweighs that of its batch
    by orders of magnitude, so that clipping leaves nothing of the others.
    """
    largest = training_set.table.max(axis=1)
    tasks = tuple(task for task in training_set.tasks if largest[task.positions].max() <= limit)
    return TrainingSet(training_set.table, tasks)


def split_by_workload(
    training_set: TrainingSet, fractions: tuple[float, float], seed: int
) -> tuple[TrainingSet, TrainingSet, TrainingSet]:
    """Split into training, validation and test sets; no workload is in two of them, on any platform.

    Parameters
    ----------
    fractions : (float, float)
        Shares of the workloads for validation and test.
    seed : int
        Of the shuffle.

    Raises
    ------
    BadRecords
        If there are too few workloads to hold any back.
    """
    workloads = sorted({task.workload for task in training_set.tasks})
    if len(workloads) < 3:
        raise BadRecords(
            f"{len(workloads)} workloads are too few to hold some back for early stopping: 3 or more are needed"
        )
    shuffled = np.random.default_rng(seed).permutation(len(workloads))
    held_back = [max(1, round(f * len(workloads))) for f in fractions]
    validation = {workloads[i] for i in shuffled[: held_back[0]]}
    test = {workloads[i] for i in shuffled[held_back[0] : sum(held_back)]}
    parts: tuple[list[TrainingTask], ...] = ([], [], [])
    for task in training_set.tasks:
        parts[1 if task.workload in validation else 2 if task.workload in test else 0].append(task)
    names = ("train", "validation", "test")
    check_no_leak({n: [task.workload for task in part] for n, part in zip(names, parts, strict=True)})
    train, valid, tested = (TrainingSet(training_set.table, tuple(part)) for part in parts)
    return train, valid, tested
