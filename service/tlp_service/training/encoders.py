"""From candidates to what a network is trained on: one encoder a preset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tlp_client.primitives import Primitive
from tlp_service.errors import BadRecords
from tlp_service.families.loopnest import features as loopnest_features
from tlp_service.families.loopnest.task import PLATFORMS, TASK_WIDTH, task_row
from tlp_service.families.published.features import PublishedFeatures

#: (platform, workload) of a task
TaskName = tuple[str, str]


class Encoder(ABC):
    """Makes the arrays of a training set.

    Attributes
    ----------
    table : ndarray of float32, shape (rows, row width)
        Rows that positions refer to; there after `begin`.
    broken : frozenset of int
        Distinct primitives that have no row.
    platforms : tuple of str
        Platforms that the network tells apart, in the order of their numbers.
    """

    table: npt.NDArray[np.float32]
    broken: frozenset[int] = frozenset()
    platforms: tuple[str, ...] = ()

    @abstractmethod
    def begin(self, primitives: Sequence[Primitive], tasks: Sequence[TaskName]) -> None:
        """Make the table for the distinct primitives and the tasks of a set."""

    @abstractmethod
    def encode(
        self, task: int, indices: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float16]]:
        """Return positions, shape (candidates, places), and values, shape (candidates, W), of candidates of a task.

        Parameters
        ----------
        task : int
            Number of the task.
        indices, lengths : ndarray of int
            Distinct primitives of all candidates, one candidate after the other, and how many each has.
        """


class PublishedEncoder(Encoder):
    """Rows of the published features; a candidate has no other values."""

    def __init__(self, features: PublishedFeatures) -> None:
        self._features = features

    def begin(self, primitives: Sequence[Primitive], tasks: Sequence[TaskName]) -> None:
        """Make one row a primitive."""
        self.table, errors = self._features.rows(primitives)
        self.broken = frozenset(errors)

    def encode(
        self, task: int, indices: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float16]]:
        """Return the row at each step."""
        positions = self._features.positions(indices, lengths).astype(np.int32)
        return positions, np.empty((len(lengths), 0), dtype=np.float16)


class HeadEncoder(PublishedEncoder):
    """Rows of the published features; a candidate's value is the number of its platform, which has a head of its own."""

    def begin(self, primitives: Sequence[Primitive], tasks: Sequence[TaskName]) -> None:
        """Make one row a primitive, and number the platforms."""
        super().begin(primitives, tasks)
        self.platforms = tuple(sorted({platform for platform, _ in tasks}))
        self._heads = [self.platforms.index(platform) for platform, _ in tasks]

    def encode(
        self, task: int, indices: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float16]]:
        """Return the row at each step, and the number of the head."""
        positions, _ = super().encode(task, indices, lengths)
        return positions, np.full((len(lengths), 1), self._heads[task], dtype=np.float16)


class BaseEncoder(Encoder):
    """One row a task; a candidate's values are its nest.

    Parameters
    ----------
    platforms : sequence of str
        Platforms with a number already, of the version that is trained on; others follow in order of their names.
    """

    def __init__(self, platforms: Sequence[str] = ()) -> None:
        self.platforms = tuple(platforms)
        self._primitives: Sequence[Primitive] = ()

    def begin(self, primitives: Sequence[Primitive], tasks: Sequence[TaskName]) -> None:
        """Make one row a task."""
        self._primitives = primitives
        new = sorted({platform for platform, _ in tasks} - set(self.platforms))
        self.platforms += tuple(new)
        if len(self.platforms) > PLATFORMS:
            raise BadRecords(f"{len(self.platforms)} platforms are more than the {PLATFORMS} of one network")
        numbers: Mapping[str, int] = {platform: n for n, platform in enumerate(self.platforms)}
        rows = [task_row(workload, numbers[platform]) for platform, workload in tasks]
        self.table = np.stack(rows) if rows else np.empty((0, TASK_WIDTH), dtype=np.float32)

    def encode(
        self, task: int, indices: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float16]]:
        """Return the task's row for each candidate, and their nests."""
        used, local = np.unique(indices, return_inverse=True)
        nests = loopnest_features.nests([self._primitives[n] for n in used], local, lengths)
        return np.full((len(lengths), 1), task, dtype=np.int32), nests
