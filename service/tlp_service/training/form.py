"""The interface of an exported network: its inputs, outputs and dynamic sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

#: Sizes of an exported network that may differ from run to run.
NEW, KNOWN, CANDIDATES, PLACES = (torch.export.Dim(name) for name in ("new", "known", "candidates", "places"))


@dataclass(frozen=True, slots=True)
class Form:
    """A module to export, in the form that `tlp_service.inference.network.OnnxNetwork` runs.

    Its ``forward(rows, *known, positions, values)`` returns ``(*encodings, raw_scores)``. One call does either
    half: it encodes rows and scores no candidates, or it scores candidates from the encodings that an earlier
    call returned and encodes no rows. Each encoding has one entry per row, and ``raw_scores`` has the shape
    (candidates,). ``forward`` need not use all of its arguments.

    Parameters
    ----------
    module : Module
        Holds the network as its attribute ``network``; the names of the exported weights begin with it.
    encodings : tuple of str
        Names of what a row is encoded to. They become names of outputs, and ``known_NAME`` those of inputs.
        All names must differ from each other, from `values` and from ``rows``, ``positions`` and
        ``raw_scores``.
    values : str
        Name of what is read of a candidate besides its rows.
    example : tuple of Tensor
        Arguments of ``forward``. Their dynamic sizes differ from each other and from 0 and 1, which the exporter would
        take for constants.
    dynamic : tuple of dict
        Per argument, its dynamic dimensions.
    """

    module: torch.nn.Module
    encodings: tuple[str, ...]
    values: str
    example: tuple[Tensor, ...]
    dynamic: tuple[dict[int, torch.export.Dim], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """Candidates to compare scores by.

    Parameters
    ----------
    table : ndarray of float32, shape (rows, row width)
        Rows of a training set.
    positions : ndarray of int, shape (candidates, places)
        Rows of each candidate.
    values : ndarray, shape (candidates, W)
        What the network reads of each besides.
    """

    table: npt.NDArray[np.float32]
    positions: npt.NDArray[np.int32]
    values: npt.NDArray[np.floating]
