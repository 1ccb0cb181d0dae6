"""The interface of a trainable model: its inputs, its network and its default training settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tlp_client.dialects.registry import DEFAULT
from tlp_client.tasks import PlatformKind
from tlp_service.inference.score_map import fit_score_map
from tlp_service.training.dataset import TrainingSet
from tlp_service.training.encoder import Encoder
from tlp_service.training.fit import FitSettings
from tlp_service.training.network import ExportableNetwork, TrainableNetwork
from tlp_service.versions.manifest import Network, ScoreMap


@dataclass(frozen=True, slots=True)
class Exported:
    """A network of its own in the version that a training ends with.

    Parameters
    ----------
    name : str
        Of its file.
    network : ExportableNetwork
        What is exported.
    platforms : tuple of str
        Platforms that it scores.
    """

    name: str
    network: ExportableNetwork
    platforms: tuple[str, ...]


class Preset(ABC):
    """A model that can be trained.

    Attributes
    ----------
    name : str
        Value of ``model`` in manifests.
    earlier_names : tuple of str
        Values of ``model`` in manifests of earlier releases.
    features : str
        Name of its model family.
    dialects : tuple of str
        Names of the dialects whose records it is trained on, of those that its family reads.
    continues : bool
        Whether a version of the model can be fine-tuned.
    learns : bool
        Whether the trainer fine-tunes versions of the model on new measurements.
    validity : Preset or None
        Preset of the second network, which predicts whether a candidate runs.
    settings : FitSettings
        Default settings for training.
    adapting : dict
        Settings that differ for fine-tuning a platform's network.
    """

    name: str
    earlier_names: tuple[str, ...] = ()
    features: str
    dialects: tuple[str, ...] = (DEFAULT,)
    continues = True
    learns = False
    validity: Preset | None = None
    settings: FitSettings
    adapting: Mapping[str, Any] = MappingProxyType(
        {"learning_rate": 6e-4, "unknown_platforms": 0.0, "fewest_steps": 400}
    )

    def is_of(self, model: str) -> bool:
        """Return whether a manifest's ``model`` names this preset."""
        return model == self.name or model in self.earlier_names

    @property
    def adapting_settings(self) -> FitSettings:
        """Settings for fine-tuning a platform's network."""
        return replace(self.settings, **self.adapting)

    @abstractmethod
    def encoder(self, kind: PlatformKind, known: Sequence[str] = ()) -> Encoder:
        """Return what makes its training sets; the platforms that a version tells apart already keep their numbers."""

    @abstractmethod
    def network(
        self, train: TrainingSet, settings: FitSettings, source: tuple[Network, Path] | None
    ) -> TrainableNetwork:
        """Return a network to train: new, or with the weights of a version's network."""

    def exported(self, name: str, network: TrainableNetwork, train: TrainingSet) -> list[Exported]:
        """Return what a trained network becomes in the version: itself, in a file of this name."""
        assert isinstance(network, ExportableNetwork), "a preset with other networks has its own `exported`"
        return [Exported(name, network, train.numbered or train.platforms)]

    @abstractmethod
    def shape(self, kind: PlatformKind) -> tuple[int, int]:
        """Return the rows of a candidate and the numbers of a row."""

    def score_map(self, raw: npt.NDArray[np.float64]) -> ScoreMap:
        """Return the map from raw to served scores, from raw scores of candidates that were trained on."""
        return fit_score_map(raw)
