"""From candidates to what a network is trained on: the interface of a preset's encoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tlp_client.primitives import Primitive

#: (platform, workload) of a task
TaskName = tuple[str, str]

#: From the costs of a task's candidates to what is learned of them.
Labels = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float32]]


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

        Notes
        -----
        Values are float16: whole numbers above 2,048 are rounded, and numbers above 65,504 become infinite. Scale large
        values, or take their logarithm. The family's `Plan` must round alike, so that the network reads
        in a server what it was
        trained on.
        """

    def labels(self, costs: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        """Return what is learned of a task's candidates, shape (candidates,), from their costs in seconds."""
        return best_over_cost(costs)


def best_over_cost(costs: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Return the best cost of a task over each candidate's, in (0, 1] (TLP, section 4.4)."""
    return np.asarray(costs.min() / costs, dtype=np.float32)
