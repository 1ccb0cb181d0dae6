"""The plan of `published`: the rows of each candidate, without most of their padding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tlp_service.inference.plan import Plan, Run


@dataclass(frozen=True, slots=True)
class RowPlan(Plan):
    """The candidates of a request, sorted by length, so that runs contain little padding.

    Parameters
    ----------
    indices : ndarray of int, shape (sum of lengths,)
        Primitives of all candidates, one candidate after the other.
    starts : ndarray of int, shape (candidates,)
        Place in `indices` at which each candidate begins.
    lengths : ndarray of int, shape (candidates,)
        Number of primitives of each candidate that the network reads.
    order : ndarray of int, shape (candidates,)
        The candidates, shortest first.
    steps : int
        Rows that the network reads per candidate, including padding.
    """

    indices: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    steps: int

    @classmethod
    def of(cls, indices: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], steps: int) -> RowPlan:
        """Return the plan for candidates; their primitives after the first `steps` are ignored."""
        real = np.minimum(lengths, steps)
        return cls(indices, np.cumsum(lengths) - lengths, real, np.argsort(real, kind="stable"), steps)

    @property
    def candidates(self) -> int:
        """Number of candidates."""
        return len(self.order)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays of the plan."""
        return self.indices.nbytes + 3 * self.order.nbytes

    @property
    def mean_length(self) -> int:
        """Average number of places per candidate, including that of the padding."""
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
