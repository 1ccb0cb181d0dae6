"""The interface of a model family.

A family is one way to score schedules. It defines the network inputs that it computes from a request, its
networks, and their training. Its code is in one folder below `tlp_service.families`, or in a package of its
own (see `tlp_service.families`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from tlp_client.dialects.registry import DEFAULT
from tlp_client.wire.predict import PredictRequest
from tlp_service.errors import BadVersion, InvalidBody
from tlp_service.inference.inputs import Inputs
from tlp_service.inference.score_map import map_scores
from tlp_service.scheduling.steps import Steps
from tlp_service.versions.manifest import Network

if TYPE_CHECKING:  # a server has no torch
    from tlp_service.training.preset import Preset


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with the network that scores it.

    Parameters
    ----------
    network : Network
        Network of the version that scores the request.
    platform : str or None
        Name of the request's platform if the network distinguishes it from others; None if not.
    request : PredictRequest
        Request with the candidates.
    """

    network: Network
    platform: str | None
    request: PredictRequest


class Family(ABC):
    """A model family. All threads share one object, so it must not keep state of a request.

    Attributes
    ----------
    name : str
        Name of the family in the field ``features`` of manifests.
    earlier_names : tuple of str
        Names of this family, and of its models, in manifests of earlier releases.
    models : tuple of str
        Names of the models that can be trained. Each has a `preset`.
    dialects : tuple of str
        Names of the dialects that the family supports, see `tlp_client.dialects`.
    """

    name: ClassVar[str]
    earlier_names: ClassVar[tuple[str, ...]] = ()
    models: ClassVar[tuple[str, ...]] = ()
    dialects: ClassVar[tuple[str, ...]] = (DEFAULT,)

    @abstractmethod
    def inputs_in_steps(self, asked: Sequence[Asked]) -> Steps[list[Inputs]]:
        """Compute the network inputs of requests, in steps of bounded time.

        All requests are passed at once, so computations that depend on candidates only can be shared.
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

    def check_dialect(self, dialect: str) -> None:
        """Refuse candidates of a dialect that this family does not support.

        Raises
        ------
        InvalidBody
            The code is ``unsupported``, because a version of another family may support the dialect.
        """
        if dialect not in self.dialects:
            known = ", ".join(self.dialects)
            raise InvalidBody(
                f"task.dialect: expected one that this model version reads ({known}), got {dialect!r}; "
                "ask for a version that was trained on it",
                code="unsupported",
            )

    def check_sizes(self, network: Network, actual: tuple[int, int], expected: tuple[int, int]) -> None:
        """Raise `BadVersion` if the input sizes of a file differ from those that this family computes."""
        if actual != expected:
            raise BadVersion(
                f"the {network.platform_kind} network reads {actual[0]} x {actual[1]} numbers, "
                f"its features '{network.features}' are {expected[0]} x {expected[1]}"
            )
