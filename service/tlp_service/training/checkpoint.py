"""Training checkpoints, from which an interrupted training resumes.

A file of tensors (safetensors, no pickle), whose metadata are JSON.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from tlp_service.errors import BadVersion
from tlp_service.ranking.ranking import Ranking


@dataclass(frozen=True, slots=True)
class Best:
    """The weights after the epoch that ranked the validation tasks best."""

    epoch: int
    ranking: Ranking
    quality: float
    weights: dict[str, Tensor]


class Progress:
    """The state of a training: weights, their average, optimizer, random generator, the best epoch so far.

    Parameters
    ----------
    network : Module
        The network in training.
    optimizer : Optimizer
        Adam or a variant of it.
    random : Generator
        Random generator that draws the batches.
    factor : float
        Factor of the exponential moving average of the weights; 0 for no average.
    """

    def __init__(
        self,
        network: Any,
        optimizer: torch.optim.Optimizer,
        random: np.random.Generator,
        factor: float,
    ) -> None:
        self.network = network
        self.optimizer = optimizer
        self.random = random
        self.epoch = 0
        self.steps = 0
        self.best: Best | None = None
        self._factor = factor
        self._averaged: Any = copy.deepcopy(network).eval() if factor else None

    def average(self) -> None:
        """Update the moving average of the weights after a step; its factor is smaller at first."""
        self.steps += 1
        if self._averaged is None:
            return
        factor = min(self._factor, 1 - 1 / (1 + self.steps / 10))
        with torch.no_grad():
            for kept, new in zip(self._averaged.parameters(), self.network.parameters(), strict=True):
                kept.lerp_(new, 1 - factor)

    def judged(self) -> Any:
        """Return the network that is judged and kept."""
        return self._averaged if self._averaged is not None else self.network

    def end_epoch(self, ranking: Ranking, quality: float) -> None:
        """Count an epoch, and keep its weights if their quality is the best so far."""
        self.epoch += 1
        # Without tasks to judge by, the last epoch is kept.
        if self.best is None or not quality <= self.best.quality:
            weights = {name: tensor.detach().clone() for name, tensor in self.judged().state_dict().items()}
            self.best = Best(self.epoch, ranking, quality, weights)

    def is_stuck(self, patience: int) -> bool:
        """Return whether the last `patience` epochs brought no improvement."""
        return self.best is not None and self.epoch - self.best.epoch >= patience

    def modules(self) -> dict[str, nn.Module]:
        """Return the networks whose weights are part of the progress."""
        averaged = {} if self._averaged is None else {"averaged": self._averaged}
        return {"network": self.network, **averaged}


class Checkpoint:
    """The file of a progress.

    Parameters
    ----------
    path : Path
        Replaced as a whole each time.
    settings : object
        Dataclass of the training's settings; those of a run that goes on must be the same.
    identity : str
        Of what it began with, which must be the same, too.
    """

    def __init__(self, path: Path, settings: Any, identity: str) -> None:
        self._path = path
        self._settings = json.dumps(dataclasses.asdict(settings))
        self._identity = identity

    def save(self, progress: Progress) -> None:
        """Write the progress aside, then rename."""
        tensors: dict[str, Tensor] = {}
        for name, module in progress.modules().items():
            tensors |= {f"{name}/{key}": tensor for key, tensor in module.state_dict().items()}
        for number, state in progress.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{number}/{key}": tensor for key, tensor in state.items()}
        best = progress.best
        assert best is not None, "saved after an epoch"
        tensors |= {f"best/{key}": tensor for key, tensor in best.weights.items()}
        metadata = {
            "settings": self._settings,
            "identity": self._identity,
            "epoch": str(progress.epoch),
            "steps": str(progress.steps),
            "draws": json.dumps(progress.random.bit_generator.state),
            "best": json.dumps(
                {
                    "epoch": best.epoch,
                    "ranking": dataclasses.asdict(best.ranking),
                    "quality": best.quality,
                }
            ),
        }
        aside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        save_file(
            {name: tensor.contiguous().cpu().clone() for name, tensor in tensors.items()}, aside, metadata
        )
        os.replace(aside, self._path)

    def load(self, progress: Progress) -> bool:
        """Take a saved progress up, if there is one.

        Raises
        ------
        BadVersion
            If the file is damaged, or of another network or other settings.
        """
        if not self._path.exists():
            return False
        try:
            with safe_open(self._path, "pt") as file:
                metadata = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if metadata["identity"] != self._identity:
                raise BadVersion(
                    f"{self._path} is of a training on other records, or from other weights: remove it"
                )
            if metadata["settings"] != self._settings:
                raise BadVersion(
                    f"{self._path} is of a training with other settings: remove it, or repeat them"
                )
            for name, module in progress.modules().items():
                module.load_state_dict(_below(tensors, name))
            state = progress.optimizer.state_dict()
            state["state"] = {}
            for name, tensor in _below(tensors, "optimizer").items():
                number, key = name.split("/")
                state["state"].setdefault(int(number), {})[key] = tensor
            progress.optimizer.load_state_dict(state)
            best = json.loads(metadata["best"])
            progress.best = Best(
                best["epoch"], Ranking(**best["ranking"]), best["quality"], _below(tensors, "best")
            )
            progress.epoch, progress.steps = int(metadata["epoch"]), int(metadata["steps"])
            progress.random.bit_generator.state = json.loads(metadata["draws"])
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise BadVersion(f"{self._path}: cannot go on from this checkpoint: {error}") from None
        return True


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(f"{prefix}/"): t for k, t in tensors.items() if k.startswith(f"{prefix}/")}
