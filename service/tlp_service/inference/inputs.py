"""What a network reads of the candidates of a request."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tlp_service.inference.plan import Plan


@dataclass(frozen=True, slots=True)
class Inputs:
    """The candidates of a request, as a network reads them.

    Parameters
    ----------
    table : ndarray of float32, shape (rows, row width)
        Rows that the plan refers to.
    plan : Plan
        What each run reads.
    errors : dict
        Position of a candidate -> what is wrong, and where in it.
    truncated : int
        Candidates that the network does not read to their end.
    """

    table: npt.NDArray[np.float32]
    plan: Plan
    errors: dict[int, str] = field(default_factory=dict)
    truncated: int = 0
