"""Training sets: the records of many logs as arrays, split by workload."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tlp_client.dialects.registry import DEFAULT
from tlp_client.logs import RefusedLine
from tlp_client.primitives import Primitive
from tlp_client.records import Record
from tlp_client.tasks import PlatformKind, platform_kind
from tlp_service.errors import BadRecords
from tlp_service.ranking.plausible import is_plausible
from tlp_service.records.files import log_records
from tlp_service.records.platform_table import PlatformOf
from tlp_service.records.split import Part, check_no_leak
from tlp_service.training.encoder import Encoder, Labels, best_over_cost


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """The candidates of one workload on one platform.

    Parameters
    ----------
    platform, workload : str
        What the task is.
    positions : ndarray of int32, shape (candidates, places)
        Rows of the set's table.
    values : ndarray of float16, shape (candidates, W)
        What the network reads besides.
    costs : ndarray of float64, shape (candidates,)
        Median of each record's costs, in seconds.
    failed : ndarray of float16, shape (failed candidates, W)
        Values of those that never ran well, where the encoder has a use for them.
    """

    platform: str
    workload: str
    positions: npt.NDArray[np.int32]
    values: npt.NDArray[np.float16]
    costs: npt.NDArray[np.float64]
    failed: npt.NDArray[np.float16] = field(default_factory=lambda: np.empty((0, 0), dtype=np.float16))

    def some(self, rows: npt.NDArray[np.int64]) -> TrainingTask:
        """Return the task with only these candidates, and all failed ones."""
        return replace(self, positions=self.positions[rows], values=self.values[rows], costs=self.costs[rows])


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """All tasks of one platform kind over one table of rows.

    Parameters
    ----------
    table : ndarray of float32, shape (rows, row width)
        Rows that the tasks' positions refer to.
    tasks : tuple of TrainingTask
    numbered : tuple of str
        Platforms that the network tells apart, in the order of their numbers.
    labels : callable
        What is learned of a task's candidates, from their costs; see `Encoder.labels`.
    """

    table: npt.NDArray[np.float32]
    tasks: tuple[TrainingTask, ...]
    numbered: tuple[str, ...] = ()
    labels: Labels = best_over_cost

    @property
    def candidates(self) -> int:
        """Number of candidates of all tasks."""
        return sum(len(task.costs) for task in self.tasks)

    @property
    def platforms(self) -> tuple[str, ...]:
        """Names of the platforms, sorted."""
        return tuple(sorted({task.platform for task in self.tasks}))


@dataclass(slots=True)
class ImportReport:
    """Counts of the lines that were read, by outcome."""

    counts: Counter[str] = field(default_factory=Counter)
    refused: list[RefusedLine] = field(default_factory=list)


def read_records(
    paths: Iterable[Path],
    platform_of: PlatformOf,
    report: ImportReport,
    with_failed: bool = False,
    dialects: Collection[str] = (DEFAULT,),
) -> Iterator[tuple[str, Record]]:
    """Yield ``(platform, record)`` for the records of logs, see `valid_records`; the rest is counted by cause."""
    refused: list[RefusedLine] = []
    yield from valid_records(log_records(paths, platform_of, refused), report, with_failed, dialects)
    report.counts.update(f"left out: refused line, {line.cause}" for line in refused)
    report.refused.extend(refused)


def valid_records(
    records: Iterable[tuple[str | None, Record]],
    report: ImportReport,
    with_failed: bool = False,
    dialects: Collection[str] = (DEFAULT,),
) -> Iterator[tuple[str, Record]]:
    """Yield the records of some dialects that have a platform: the valid ones, or also those of failed runs.

    The rest is counted by cause.
    """
    for platform, record in records:
        if record.task.dialect not in dialects:
            report.counts[f"left out: dialect {record.task.dialect!r}, which the model does not read"] += 1
        elif not record.is_valid and not with_failed:
            report.counts["left out: failed or implausible run"] += 1
        elif platform is None:
            report.counts["left out: no platform"] += 1
        elif not record.is_valid:
            report.counts["not ranked: failed or implausible run"] += 1
            yield platform, record
        else:
            report.counts[f"used: {platform}"] += 1
            yield platform, record


def build_sets(
    records: Iterable[tuple[str, Record]],
    encoders: Mapping[PlatformKind, Encoder],
    report: ImportReport,
    min_candidates: int = 2,
) -> dict[PlatformKind, TrainingSet]:
    """Collect records into one training set per platform kind.

    Exact duplicates (same task, same primitives) are one candidate with the costs of all. A record with a
    primitive that the vocabulary lacks is left out and counted; so is a task with fewer candidates
    than can be ranked. A candidate all of whose runs failed is one of its task's `failed`; one whose cost
    cannot be a run time
    (see `is_plausible`) is left out and counted.
    """
    builders = {kind: _Builder(encoder) for kind, encoder in encoders.items()}
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

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.index: dict[Primitive, int] = {}
        self.costs: dict[tuple[str, str], dict[tuple[int, ...], list[float]]] = defaultdict(dict)
        self.failed: dict[tuple[str, str], dict[tuple[int, ...], None]] = defaultdict(dict)

    def add(self, platform: str, record: Record) -> None:
        index = self.index
        candidate = tuple(index.setdefault(p, len(index)) for p in record.primitives)
        if record.is_valid:
            self.costs[platform, record.task.workload].setdefault(candidate, []).extend(record.costs)
        else:
            self.failed[platform, record.task.workload][candidate] = None

    def build(self, report: ImportReport, min_candidates: int) -> TrainingSet:
        names = sorted(self.costs)
        encoder = self.encoder
        encoder.begin(list(self.index), names)
        tasks = []
        for number, name in enumerate(names):
            candidates = self.costs.pop(name)
            good = {c: costs for c, costs in candidates.items() if encoder.broken.isdisjoint(c)}
            if len(good) < len(candidates):
                report.counts["left out: primitive without a row"] += len(candidates) - len(good)
            costs = np.array([np.median(c) for c in good.values()])
            counts = is_plausible(name[1], costs)
            if not counts.all():
                report.counts["left out: cost that cannot be a run time"] += int((~counts).sum())
                good = {c: good[c] for c, does_count in zip(list(good), counts, strict=True) if does_count}
                costs = costs[counts]
            if 0 < len(good) < min_candidates:
                report.counts["left out: task with too few candidates"] += len(good)
            if len(good) < min_candidates:
                continue
            positions, values = self._encode(number, good)
            failed = [c for c in self.failed.pop(name, ()) if c not in candidates]
            _, of_failed = self._encode(number, failed)
            tasks.append(TrainingTask(*name, positions, values, costs, of_failed))
        return TrainingSet(encoder.table, tuple(tasks), encoder.platforms, encoder.labels)

    def _encode(
        self, task: int, candidates: Collection[tuple[int, ...]]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float16]]:
        lengths = np.array([len(c) for c in candidates], dtype=np.int64)
        indices = np.array([i for c in candidates for i in c], dtype=np.int64)
        return self.encoder.encode(task, indices, lengths)


def of_platforms(training_set: TrainingSet, platforms: Container[str]) -> TrainingSet:
    """Return the set with only the tasks of some platforms."""
    tasks = tuple(task for task in training_set.tasks if task.platform in platforms)
    return replace(training_set, tasks=tasks)


def without_large_numbers(training_set: TrainingSet, limit: float) -> TrainingSet:
    """Return the set without the tasks whose rows hold a number above `limit`.

    The published rows hold raw numbers, and extents reach 3e8. The gradient of one such candidate outweighs
    that of its batch by orders of magnitude, so that clipping leaves nothing of the others.
    """
    largest = training_set.table.max(axis=1)
    tasks = tuple(task for task in training_set.tasks if largest[task.positions].max() <= limit)
    return replace(training_set, tasks=tasks)


def split_set(
    training_set: TrainingSet, parts: Mapping[str, Part]
) -> tuple[TrainingSet, TrainingSet, TrainingSet]:
    """Return the tasks whose workload is in the train, validation and test part.

    Raises
    ------
    BadRecords
        If there is nothing to train on or nothing to stop early by, or if a workload is in two parts.
    """
    tasks: dict[Part, list[TrainingTask]] = {"train": [], "validation": [], "test": []}
    for task in training_set.tasks:
        tasks[parts[task.workload]].append(task)
    check_no_leak({part: [task.workload for task in found] for part, found in tasks.items()})
    if not tasks["train"] or not tasks["validation"]:
        raise BadRecords(
            f"{len(parts)} workloads are too few to hold some back for early stopping: none are left to "
            + ("train on" if not tasks["train"] else "validate with")
            + ". A record store decides by a hash of each; of logs ('--records my_log.json') some are always held back"
        )
    train, validation, test = (replace(training_set, tasks=tuple(found)) for found in tasks.values())
    return train, validation, test


def shuffled_parts(workloads: Iterable[str], fractions: tuple[float, float], seed: int) -> dict[str, Part]:
    """Return the part of each workload, at least one for validation and test each.

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
    names = sorted(set(workloads))
    if len(names) < 3:
        raise BadRecords(
            f"{len(names)} workloads are too few to hold some back for early stopping: 3 or more are needed"
        )
    shuffled = np.random.default_rng(seed).permutation(len(names))
    validation, test = (max(1, round(f * len(names))) for f in fractions)
    return {
        names[n]: "validation" if place < validation else "test" if place < validation + test else "train"
        for place, n in enumerate(shuffled)
    }


def share_of(training_set: TrainingSet, share: float, platforms: Container[str], seed: int) -> TrainingSet:
    """Return the set with only this share of the candidates of some platforms, drawn from each of their tasks.

    Whether a task gets the candidate that its share leaves over is drawn, so that the share is right over all.
    """
    random = np.random.default_rng(seed)
    tasks = []
    for task in training_set.tasks:
        if task.platform in platforms:
            count = int(share * len(task.costs) + random.random())
            if count < 2:  # nothing to rank
                continue
            task = task.some(np.sort(random.permutation(len(task.costs))[:count]))
            task = replace(task, failed=task.failed[: round(share * len(task.failed))])
        tasks.append(task)
    return replace(training_set, tasks=tuple(tasks))
