"""The models that can be trained: what each reads, what its network is, how it is trained unless told otherwise."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch

from tlp_client.tasks import PlatformKind
from tlp_service.errors import BadRecords, BadSettings, BadVersion
from tlp_service.evaluation.ranking import rank_tasks
from tlp_service.families.loopnest import features as loopnest_features
from tlp_service.families.loopnest.network import BaseNetwork, Pieces
from tlp_service.families.loopnest.task import TASK_WIDTH, platform_column
from tlp_service.families.published.features import PUBLISHED
from tlp_service.families.published.network import MultiHeadNetwork, PublishedNetwork
from tlp_service.training.dataset import TrainingSet, of_platforms
from tlp_service.training.encoders import BaseEncoder, Encoder, HeadEncoder, PublishedEncoder
from tlp_service.training.export import SingleNetwork, nest_width_of, read_weights
from tlp_service.training.fit import AnyNetwork, FitSettings, predict_task, ranked_tasks
from tlp_service.versions.manifest import Network

log = logging.getLogger(__name__)

PresetName = Literal["published", "published-mtl", "base"]

#: Candidates of a task that have a say in where numbers are cut into pieces.
_A_TASKS_SAY = 128


@dataclass(frozen=True, slots=True)
class Exported:
    """A network of its own in the version that a training ends with.

    Parameters
    ----------
    name : str
        Of its file.
    network : PublishedNetwork or BaseNetwork
        What is exported.
    platforms : tuple of str
        Platforms that it scores.
    """

    name: str
    network: SingleNetwork
    platforms: tuple[str, ...]


class Preset(ABC):
    """A model that can be trained."""

    name: PresetName
    features: Literal["published", "base"]
    #: Whether a training can begin from a version of it.
    continues = True
    #: What tells how likely a candidate is to run, where the model does.
    validity: Preset | None = None
    settings: FitSettings
    #: What of the settings is another where a platform's network begins from a version's.
    adapting: Mapping[str, Any] = MappingProxyType(
        {"learning_rate": 6e-4, "unknown_platforms": 0.0, "fewest_steps": 400}
    )

    @abstractmethod
    def encoder(self, kind: PlatformKind, known: Sequence[str] = ()) -> Encoder:
        """Return what makes its training sets; the platforms that a version tells apart already keep their numbers."""

    @abstractmethod
    def network(
        self, train: TrainingSet, settings: FitSettings, source: tuple[Network, Path] | None
    ) -> AnyNetwork:
        """Return a network to train: a new one, or one with the weights of a version's."""

    def exported(self, name: str, network: AnyNetwork, train: TrainingSet) -> list[Exported]:
        """Return what a trained network becomes in the version: itself, in a file of this name."""
        assert not isinstance(network, MultiHeadNetwork), "it has parts of its own"
        return [Exported(name, network, train.numbered or train.platforms)]

    @abstractmethod
    def shape(self, kind: PlatformKind) -> tuple[int, int]:
        """Return the rows of a candidate and the numbers of a row."""


class Published(Preset):
    """TLP as its paper has it."""

    name: PresetName = "published"
    features = "published"
    settings = FitSettings()

    def encoder(self, kind: PlatformKind, known: Sequence[str] = ()) -> Encoder:
        """Return an encoder of the published rows of a platform kind."""
        return PublishedEncoder(PUBLISHED[kind])

    def network(
        self, train: TrainingSet, settings: FitSettings, source: tuple[Network, Path] | None
    ) -> AnyNetwork:
        """Return a network of the published sizes."""
        torch.manual_seed(settings.seed)
        network = PublishedNetwork(train.table.shape[1])
        if source is not None:
            network.load_state_dict(read_weights(source[1]))
        return network

    def shape(self, kind: PlatformKind) -> tuple[int, int]:
        """Return the published shape."""
        return PUBLISHED[kind].steps, PUBLISHED[kind].width


class PublishedMTL(Published):
    """TLP with a head a platform; the version has one network a platform, as each is then served like `published`."""

    name = "published-mtl"
    continues = False

    def encoder(self, kind: PlatformKind, known: Sequence[str] = ()) -> Encoder:
        """Return an encoder that tells the platforms apart."""
        return HeadEncoder(PUBLISHED[kind])

    def network(
        self, train: TrainingSet, settings: FitSettings, source: tuple[Network, Path] | None
    ) -> AnyNetwork:
        """Return a network of the published sizes with a head a platform."""
        assert source is None, "it does not continue"
        torch.manual_seed(settings.seed)
        return MultiHeadNetwork(train.table.shape[1], len(train.numbered))

    def exported(self, name: str, network: AnyNetwork, train: TrainingSet) -> list[Exported]:
        """Return a network a platform that was trained on, the one with the most candidates first."""
        assert isinstance(network, MultiHeadNetwork), "made by this preset"
        candidates = Counter[str]()
        for task in train.tasks:
            candidates[task.platform] += len(task.costs)
        return [
            Exported(f"{name}-{platform}", network.alone(train.numbered.index(platform)), (platform,))
            for platform, _ in candidates.most_common()
        ]


class Base(Preset):
    """Ours: residual blocks over the loop nest, eight members."""

    name = "base"
    features = "base"
    settings = FitSettings(
        loss="combined",
        epochs=40,
        batch=256,
        learning_rate=1e-3,
        weight_decay=0.02,
        gradient_norm=1.0,
        schedule="one-cycle",
        average=0.99,
        judge="pairs",
        patience=1000,
        max_candidates=64,
        unknown_platforms=0.1,
    )
    #: The rate was found with these batches (decision 14); the smaller ones are for training from nothing.
    adapting = MappingProxyType({**Preset.adapting, "batch": 512})
    architecture: dict[str, int] = {"width": 64, "blocks": 2, "members": 8, "task_hidden": 64}  # noqa: RUF012

    def encoder(self, kind: PlatformKind, known: Sequence[str] = ()) -> Encoder:
        """Return an encoder that continues the known platforms."""
        return BaseEncoder(known)

    def network(
        self, train: TrainingSet, settings: FitSettings, source: tuple[Network, Path] | None
    ) -> AnyNetwork:
        """Return a network; platforms that its source lacks begin as the one of its platforms that ranks their records best."""
        torch.manual_seed(settings.seed)
        if source is None:
            nests = np.concatenate([task.values[:_A_TASKS_SAY] for task in train.tasks])
            pieces = Pieces.cutting(torch.from_numpy(nests.astype(np.float32)))
            if not len(pieces):
                raise BadRecords("the candidates are all alike: there is nothing to tell them apart by")
            network = BaseNetwork(TASK_WIDTH, pieces, **self.architecture)
            with torch.no_grad():  # one that is not trained on is as one that is not known
                network.task_in.weight[:, platform_column(0) :] = 0.0
            return network
        if nest_width_of(source[1]) != loopnest_features.NEST_WIDTH:
            raise BadVersion(
                f"{source[1]}: reads {nest_width_of(source[1])} numbers a nest, not {loopnest_features.NEST_WIDTH}"
            )
        try:
            network = BaseNetwork(TASK_WIDTH, **source[0].architecture)
            network.load_state_dict(read_weights(source[1]))
        except (TypeError, RuntimeError) as error:
            raise BadVersion(f"{source[1]}: not a network of this form: {error}") from None
        known = source[0].platforms
        for platform in train.numbered[len(known) :]:
            adopt(network, train, platform, known)
        return network

    def shape(self, kind: PlatformKind) -> tuple[int, int]:
        """Return the shape of a task's row."""
        return 1, TASK_WIDTH


class _Validity(Base):
    """A small network like `base`'s, for the log odds that a candidate builds and runs."""

    settings = replace(Base.settings, loss="validity", epochs=20, max_candidates=256)
    architecture: dict[str, int] = {"width": 32, "blocks": 1, "members": 2, "task_hidden": 16}  # noqa: RUF012


Base.validity = _Validity()

PRESETS: dict[str, Preset] = {preset.name: preset for preset in (Published(), PublishedMTL(), Base())}


def preset_named(name: str) -> Preset:
    """Return a preset.

    Raises
    ------
    BadSettings
        If there is none of that name.
    """
    if name not in PRESETS:
        raise BadSettings(f"model {name!r} cannot be trained; {', '.join(PRESETS)} can")
    return PRESETS[name]


def adopt(network: BaseNetwork, train: TrainingSet, platform: str, known: Sequence[str]) -> None:
    """Give a platform the weights of the known one whose scores rank its records best."""
    number = train.numbered.index(platform)
    own = of_platforms(train, {platform})
    if not own.tasks or not known:
        return

    def quality(other: int) -> float:
        table = train.table.copy()
        table[:, platform_column(number)] = 0
        table[:, platform_column(other)] = 1
        scores = [(predict_task(network, table, task), task.costs) for task in ranked_tasks(own)]
        return rank_tasks(scores).pair_accuracy

    nearest = max(range(len(known)), key=quality)
    log.info("%s begins as %s", platform, known[nearest])
    with torch.no_grad():
        weights: Any = network.task_in.weight
        weights[:, platform_column(number)] = weights[:, platform_column(nearest)]
