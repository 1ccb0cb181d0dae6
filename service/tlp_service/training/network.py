"""The interface of a torch network for training and export."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from tlp_service.inference.network import OnnxNetwork
from tlp_service.training.form import Form, Sample

#: Raw scores of torch and of ONNX Runtime for the same candidates.
ScorePair = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


class TrainableNetwork(nn.Module, ABC):
    """A torch network that scores candidates.

    Attributes
    ----------
    platforms_from : int or None
        First column of a row that tells the platform, if rows do: one column per platform, to the end of the row.
    """

    platforms_from: int | None = None

    @abstractmethod
    def score_distinct(self, table: Tensor, positions: Tensor, values: Tensor) -> Tensor:
        """Return the raw score of each candidate, higher is faster, shape (candidates,).

        Parameters
        ----------
        table : Tensor, shape (rows, row width)
            Distinct rows.
        positions : Tensor of int, shape (candidates, places)
            Rows of each candidate.
        values : Tensor, shape (candidates, W)
            What is read of each besides.
        """

    def member_scores(self, table: Tensor, positions: Tensor, values: Tensor) -> Tensor:
        """Return the raw scores of each member, shape (members, candidates); for the arguments see `score_distinct`."""
        return self.score_distinct(table, positions, values)[None]


class ExportableNetwork(TrainableNetwork):
    """A network that one ONNX file holds.

    Attributes
    ----------
    architecture : dict
        Arguments of the constructor that set the sizes of the layers; empty if there are none. Each network
        sets it. The manifest keeps it, so that a training can begin from the version. Networks of one class
        with equal sizes share one exported form.
    """

    architecture: dict[str, int]

    @abstractmethod
    def form(self, row_width: int, value_width: int) -> Form:
        """Return the form of a new network of the same sizes, with whatever weights."""

    @abstractmethod
    def compare(self, exported: OnnxNetwork, sample: Sample, rows: npt.NDArray[np.int64]) -> ScorePair:
        """Return the raw scores of this network and of an exported one for some candidates of a sample."""
