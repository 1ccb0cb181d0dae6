"""The training presets of `published` and its multi-head form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from tlp_client.tasks import PlatformKind
from tlp_service.families.published import MULTI_HEAD, NAME
from tlp_service.families.published.encoder import HeadEncoder, PublishedEncoder
from tlp_service.families.published.features import PUBLISHED
from tlp_service.families.published.network import MultiHeadNetwork, PublishedNetwork
from tlp_service.training.dataset import TrainingSet
from tlp_service.training.encoder import Encoder
from tlp_service.training.export import read_weights
from tlp_service.training.fit import FitSettings
from tlp_service.training.network import TrainableNetwork
from tlp_service.training.preset import Exported, Preset
from tlp_service.versions.manifest import Network


class PublishedPreset(Preset):
    """TLP as its paper has it."""

    name = features = NAME
    settings = FitSettings()

    def encoder(self, kind: PlatformKind, known: Sequence[str] = ()) -> Encoder:
        """Return an encoder of the published rows of a platform kind."""
        return PublishedEncoder(PUBLISHED[kind])

    def network(
        self, train: TrainingSet, settings: FitSettings, source: tuple[Network, Path] | None
    ) -> TrainableNetwork:
        """Return a network of the published sizes."""
        torch.manual_seed(settings.seed)
        network = PublishedNetwork(train.table.shape[1])
        if source is not None:
            network.load_state_dict(read_weights(source[1]))
        return network

    def shape(self, kind: PlatformKind) -> tuple[int, int]:
        """Return the published shape."""
        return PUBLISHED[kind].steps, PUBLISHED[kind].width


class MultiHeadPreset(PublishedPreset):
    """TLP with one head per platform; it is exported as one `published` network per platform."""

    name = MULTI_HEAD
    continues = False

    def encoder(self, kind: PlatformKind, known: Sequence[str] = ()) -> Encoder:
        """Return an encoder that tells the platforms apart."""
        return HeadEncoder(PUBLISHED[kind])

    def network(
        self, train: TrainingSet, settings: FitSettings, source: tuple[Network, Path] | None
    ) -> TrainableNetwork:
        """Return a network of the published sizes with one head per platform."""
        assert source is None, "it does not continue"
        torch.manual_seed(settings.seed)
        return MultiHeadNetwork(train.table.shape[1], len(train.numbered))

    def exported(self, name: str, network: TrainableNetwork, train: TrainingSet) -> list[Exported]:
        """Return a network a platform that was trained on, the one with the most candidates first."""
        assert isinstance(network, MultiHeadNetwork), "made by this preset"
        candidates = Counter[str]()
        for task in train.tasks:
            candidates[task.platform] += len(task.costs)
        return [
            Exported(f"{name}-{platform}", network.alone(train.numbered.index(platform)), (platform,))
            for platform, _ in candidates.most_common()
        ]


#: By the names of `Published.models`.
PRESETS: dict[str, Preset] = {preset.name: preset for preset in (PublishedPreset(), MultiHeadPreset())}
