"""Which rows stand where in the runs that score candidates: pure arithmetic on indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

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
        Row at each place; 0 is the padding.
    values : ndarray of float32, shape (n, L) or (n, W)
        How often that row stands in the candidate (its count), 0 where a place only fills up; or the candidate's nest.
    """

    candidates: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Plan:
    """The order in which the candidates of a request are scored: by their length, so that the places of a run are nearly all real.

    Parameters
    ----------
    indices : ndarray of int, shape (sum of lengths,)
        Primitives of all candidates, one candidate after the other.
    starts : ndarray of int, shape (candidates,)
        Where each begins in `indices`.
    lengths : ndarray of int, shape (candidates,)
        Primitives of each that the network reads.
    order : ndarray of int, shape (candidates,)
        The candidates, shortest first.
    steps : int
        Rows that the network reads of a candidate, padding included.
    """

    indices: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    steps: int

    @classmethod
    def of(cls, indices: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], steps: int) -> Plan:
        """Return the plan for candidates of these primitives; those after the first `steps` are cropped."""
        real = np.minimum(lengths, steps)
        return cls(indices, np.cumsum(lengths) - lengths, real, np.argsort(real, kind="stable"), steps)

    @property
    def candidates(self) -> int:
        """How many."""
        return len(self.order)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self.indices.nbytes + 3 * self.order.nbytes

    @property
    def mean_length(self) -> int:
        """Places of a candidate on average, that of the padding included."""
        return 1 + int(self.lengths.mean())

    def run(self, first: int, count: int) -> Run:
        """Return the run that scores the next `count` candidates from place `first` of the order.

        The last place of the run is the padding, with the number of padding rows that each candidate has.
        """
        candidates = self.order[first : first + count]
        lengths = self.lengths[candidates]
        longest = int(lengths.max())
        place = np.arange(longest)
        is_real = place < lengths[:, None]
        positions = np.zeros((len(candidates), longest + 1), dtype=np.int64)
        positions[:, :longest][is_real] = 1 + self.indices[(self.starts[candidates, None] + place)[is_real]]
        counts = np.empty((len(candidates), longest + 1), dtype=np.float32)
        counts[:, :longest] = is_real
        counts[:, longest] = self.steps - lengths
        return Run(candidates, positions, counts)


@dataclass(frozen=True, slots=True)
class NestPlan:
    """The candidates of a request that are told by their nests; their task is row 0.

    Parameters
    ----------
    nests : ndarray of float16, shape (candidates, W)
        See `tlp_service.families.loopnest.features.nests`.
    """

    nests: npt.NDArray[np.float16]

    @property
    def candidates(self) -> int:
        """How many."""
        return len(self.nests)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self.nests.nbytes

    @property
    def mean_length(self) -> int:
        """Places of a candidate: that of its task."""
        return 1

    def run(self, first: int, count: int) -> Run:
        """Return the run that scores the next `count` candidates from number `first`."""
        nests = self.nests[first : first + count].astype(np.float32)
        positions = np.zeros((len(nests), 1), dtype=np.int64)
        return Run(np.arange(first, first + len(nests)), positions, nests)


#: How the candidates of a request are scored.
AnyPlan: TypeAlias = Plan | NestPlan


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
