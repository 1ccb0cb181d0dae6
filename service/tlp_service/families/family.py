"""The interface of a model family.

A family is one way to score schedules: what it reads of a request, which networks it has, and how these are
trained. All of it is in one folder below `tlp_service.families`, or in a package of its own (see
`tlp_service.families`).

A network reads a candidate in two parts. A table holds the distinct rows of a request, such as one per
primitive, or one for the task; the network encodes each row once. The positions of a candidate say which rows
it refers to, and its values are numbers of its own. The network computes the score from the encoded rows and
the values. A family that needs no rows has a table with a single one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from tlp_client.dialects.registry import DEFAULT
from tlp_client.wire.predict import PredictRequest, ScoreRequest
from tlp_service.errors import BadVersion, InvalidBody
from tlp_service.inference.inputs import Inputs
from tlp_service.inference.score_map import map_scores
from tlp_service.scheduling.steps import Steps
from tlp_service.versions.manifest import Network

if TYPE_CHECKING:  # a server has no torch
    from tlp_service.training.preset import Preset

#: Units of work (see `tlp_service.scheduling.steps`) per task, and per character of its workload key.
_TASK_COST, _KEY_COST = 3_000, 4


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with the network that scores it.

    Parameters
    ----------
    network : Network
        Network of the version that scores the request.
    platform : str or None
        For which of the platforms that the network tells apart; None if it is for none of them.
    request : ScoreRequest
        One of the kinds that the network's family reads.
    """

    network: Network
    platform: str | None
    request: ScoreRequest

    @property
    def cost(self) -> int:
        """Units of work to encode the task (see `tlp_service.scheduling.steps`)."""
        return _TASK_COST + _KEY_COST * len(self.schedules.workload_key)

    @property
    def schedules(self) -> PredictRequest:
        """The request, for families that read no other kind."""
        assert isinstance(self.request, PredictRequest), "`Family.check_request` refuses others"
        return self.request


class Family(ABC):
    """A model family. All threads share one object, so it must not keep state of a request.

    Attributes
    ----------
    name : str
        Name of the family in the field ``features`` of manifests.
    earlier_names : tuple of str
        Names of this family, and of its models, in manifests of earlier releases.
    models : tuple of str
        The models that can be trained; each has a `preset`.
    requests : type or tuple of types
        Kinds of requests that it reads.
    dialects : tuple of str
        Names of the dialects that the family supports, see `tlp_client.dialects`.
    """

    name: ClassVar[str]
    earlier_names: ClassVar[tuple[str, ...]] = ()
    models: ClassVar[tuple[str, ...]] = ()
    requests: ClassVar[type[ScoreRequest] | tuple[type[ScoreRequest], ...]] = PredictRequest
    dialects: ClassVar[tuple[str, ...]] = (DEFAULT,)

    @abstractmethod
    def inputs_in_steps(self, asked: Sequence[Asked]) -> Steps[list[Inputs]]:
        """Compute the network inputs of requests, in steps of bounded time.

        It yields the cost of each step before it does that step; a unit of cost takes about 20 ns (see
        `tlp_service.scheduling.steps`). All requests are given at once, so what depends only on candidates can
        be computed for all of them together.
        """

    @abstractmethod
    def probe(self, network: Network, candidates: int) -> Inputs:
        """Return synthetic candidates to measure the speed of a network."""

    @abstractmethod
    def empty(self, network: Network) -> Inputs:
        """Return two candidates without primitives, which are valid."""

    @abstractmethod
    def check(self, network: Network, row_width: int, value_width: int | None) -> None:
        """Check that the input sizes of a file match those that this family computes.

        Parameters
        ----------
        network : Network
            Entry of the network in the manifest.
        row_width, value_width : int, int or None
            Numbers per row and values per candidate in the file; None if there is one value per place.

        Raises
        ------
        BadVersion
            If the sizes differ.
        """

    def scores(self, network: Network, raw: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Map raw scores to served ones, monotonically; by default with the score map of the manifest."""
        return map_scores(raw, network.score_map)

    @abstractmethod
    def preset(self, model: str) -> Preset:
        """Return the training preset of one of `models`. Imports torch, which a server may not have."""

    def check_request(self, request: ScoreRequest) -> None:
        """Refuse a request of a kind or dialect that this family does not read.

        Raises
        ------
        InvalidBody
            With the code ``unsupported``: a version of another family may read it.
        """
        if not isinstance(request, self.requests):
            raise InvalidBody(
                f"the body: this model version does not read a {type(request).__name__}; ask for a version that does",
                code="unsupported",
            )
        if request.dialect not in self.dialects:
            known = ", ".join(self.dialects)
            raise InvalidBody(
                f"task.dialect: expected one that this model version reads ({known}), got {request.dialect!r}; "
                "ask for a version that was trained on it",
                code="unsupported",
            )

    def check_sizes(self, network: Network, actual: tuple[int, int], expected: tuple[int, int]) -> None:
        """Raise `BadVersion` if the sizes of what a file reads differ from those of what this family computes.

        The family chooses which two sizes it compares, such as the width of a row and the number of
        values of a candidate.
        """
        if actual != expected:
            raise BadVersion(
                f"the {network.platform_kind} network reads {actual[0]} x {actual[1]} numbers, "
                f"its features '{network.features}' are {expected[0]} x {expected[1]}"
            )
