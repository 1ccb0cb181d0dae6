"""Plans: the runs that score the candidates of a request, as arrays of indices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the network.

    Parameters
    ----------
    candidates : ndarray of int, shape (n,)
        Candidates of the plan that the run scores.
    positions : ndarray of int64, shape (n, L)
        Row of the table at each place of a candidate.
    values : ndarray of float32, shape (n, L) or (n, W)
        Numbers per place or per candidate, depending on the family.
    """

    candidates: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


class Plan(ABC):
    """The order in which the candidates of a request are scored, and the inputs of each run."""

    @property
    @abstractmethod
    def candidates(self) -> int:
        """Number of candidates."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the arrays of the plan."""

    @property
    @abstractmethod
    def mean_length(self) -> int:
        """Mean number of places per candidate, at least 1."""

    @abstractmethod
    def run(self, first: int, count: int) -> Run:
        """Return the run that scores the next `count` candidates from place `first` of the order."""


def join(runs: Sequence[Run], offsets: Sequence[int]) -> Run:
    """Join runs of several plans into one; its `candidates` number them consecutively in this order.

    Parameters
    ----------
    runs : sequence of Run
        One or more runs.
    offsets : sequence of int
        Row at which the table of each run begins in the joined table.
    """
    candidates = sum(len(run.candidates) for run in runs)
    places = max(run.positions.shape[1] for run in runs)
    width = max(run.values.shape[1] for run in runs)
    positions = np.zeros((candidates, places), dtype=np.int64)
    values = np.zeros((candidates, width), dtype=np.float32)
    first = 0
    for run, offset in zip(runs, offsets, strict=True):
        last = first + len(run.candidates)
        positions[first:last, : run.positions.shape[1]] = run.positions + offset
        values[first:last, : run.values.shape[1]] = run.values
        first = last
    return Run(np.arange(candidates), positions, values)
