"""The training preset of `loopnest`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from tlp_client.tasks import PlatformKind
from tlp_service.errors import BadRecords, BadVersion
from tlp_service.families.loopnest import EARLIER_NAMES, NAME, features
from tlp_service.families.loopnest.encoder import NestEncoder
from tlp_service.families.loopnest.network import LoopNestNetwork, Pieces
from tlp_service.families.loopnest.task import TASK_WIDTH, platform_column
from tlp_service.ranking.ranking import rank_tasks
from tlp_service.training.dataset import TrainingSet, of_platforms
from tlp_service.training.encoder import Encoder
from tlp_service.training.export import read_weights, value_width_of
from tlp_service.training.fit import FitSettings, predict_task, ranked_tasks
from tlp_service.training.network import TrainableNetwork
from tlp_service.training.preset import Preset
from tlp_service.versions.manifest import Network

log = logging.getLogger(__name__)

#: Maximum number of candidates per task from which the cuts of pieces are computed.
_A_TASKS_SAY = 128


class LoopNestPreset(Preset):
    """Residual blocks over the loop nest, eight members."""

    name = features = NAME
    earlier_names = EARLIER_NAMES
    learns = True
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
        return NestEncoder(known)

    def network(
        self, train: TrainingSet, settings: FitSettings, source: tuple[Network, Path] | None
    ) -> TrainableNetwork:
        """Return a network, new or from a source.

        A platform that the source lacks is initialized with the source's platform that ranks its records
        best.
        """
        torch.manual_seed(settings.seed)
        if source is None:
            nests = np.concatenate([task.values[:_A_TASKS_SAY] for task in train.tasks])
            pieces = Pieces.cutting(torch.from_numpy(nests.astype(np.float32)))
            if not len(pieces):
                raise BadRecords("the candidates are all alike: there is nothing to tell them apart by")
            network = LoopNestNetwork(TASK_WIDTH, pieces, **self.architecture)
            with torch.no_grad():  # a platform without training data is treated like an unknown one
                network.task_in.weight[:, platform_column(0) :] = 0.0
            return network
        width = value_width_of(source[1])
        if width != features.NEST_WIDTH:
            raise BadVersion(f"{source[1]}: reads {width or 0} numbers a nest, not {features.NEST_WIDTH}")
        try:
            network = LoopNestNetwork(TASK_WIDTH, **source[0].architecture)
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


class _Validity(LoopNestPreset):
    """Preset of a smaller network that predicts the log odds that a candidate builds and runs."""

    settings = replace(LoopNestPreset.settings, loss="validity", epochs=20, max_candidates=256)
    architecture: dict[str, int] = {"width": 32, "blocks": 1, "members": 2, "task_hidden": 16}  # noqa: RUF012


LoopNestPreset.validity = _Validity()

#: The only preset of the family.
PRESET = LoopNestPreset()


def adopt(network: LoopNestNetwork, train: TrainingSet, platform: str, known: Sequence[str]) -> None:
    """Initialize a platform with the weights of the known platform that ranks its records best."""
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
