"""The runs that score the candidates of a request: pure arithmetic on indices."""

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
        Which candidates of the plan.
    positions : ndarray of int64, shape (n, L)
        Row of the table at each place of a candidate.
    values : ndarray of float32, shape (n, L) or (n, W)
        Numbers of each place, or of each candidate; its family says which.
    """

    candidates: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


class Plan(ABC):
    """The order in which the candidates of a request are scored, and what each run reads of them."""

    @property
    @abstractmethod
    def candidates(self) -> int:
        """Number of candidates."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of its arrays."""

    @property
    @abstractmethod
    def mean_length(self) -> int:
        """Mean number of places per candidate, at least 1."""

    @abstractmethod
    def run(self, first: int, count: int) -> Run:
        """Return the run that scores the next `count` candidates from place `first` of the order."""


def join(runs: Sequence[Run], offsets: Sequence[int]) -> Run:
    """Return one run for candidates of several plans; its `candidates` are their places in the order given.

    Parameters
    ----------
    runs : sequence of Run
        At least one.
    offsets : sequence of int
        Where the table of each begins in the table of all.
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
