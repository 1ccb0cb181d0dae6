"""The plan of `loopnest`: one place per candidate, its task, and the numbers of its nest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tlp_service.inference.plan import Plan, Run


@dataclass(frozen=True, slots=True)
class NestPlan(Plan):
    """The candidates of a request as nests; their task is row 0 of the table.

    Parameters
    ----------
    nests : ndarray of float16, shape (candidates, W)
        See `tlp_service.families.loopnest.features.nests`.
    """

    nests: npt.NDArray[np.float16]

    @property
    def candidates(self) -> int:
        """Number of candidates."""
        return len(self.nests)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays of the plan."""
        return self.nests.nbytes

    @property
    def mean_length(self) -> int:
        """One place per candidate: its task."""
        return 1

    def run(self, first: int, count: int) -> Run:
        """Return the run that scores the next `count` candidates from number `first`."""
        nests = self.nests[first : first + count].astype(np.float32)
        positions = np.zeros((len(nests), 1), dtype=np.int64)
        return Run(np.arange(first, first + len(nests)), positions, nests)
