"""The network inputs of the candidates of a request."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tlp_service.inference.plan import Plan


@dataclass(frozen=True, slots=True)
class Inputs:
    """The candidates of a request as network inputs.

    Parameters
    ----------
    table : ndarray of float32, shape (rows, row width)
        Rows to which the plan refers.
    plan : Plan
        Order of the candidates, and the inputs of each run.
    errors : dict
        Error of each invalid candidate, by position.
    truncated : int
        Number of candidates that are longer than the network can read.
    """

    table: npt.NDArray[np.float32]
    plan: Plan
    errors: dict[int, str] = field(default_factory=dict)
    truncated: int = 0
