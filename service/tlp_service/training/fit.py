"""Fits a network to a training set."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from tqdm import tqdm

from tlp_service.errors import TrainingDiverged
from tlp_service.evaluation.ranking import Ranking, rank_tasks
from tlp_service.models.published import PublishedNetwork
from tlp_service.training.dataset import TrainingSet, TrainingTask
from tlp_service.training.losses import mse_loss, rank_loss

log = logging.getLogger(__name__)

#: candidates of one list when pairs are formed inside tasks
LIST_LENGTH = 32
#: candidates of a task whose ranking counts
RANKED_CANDIDATES = 16


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How to train; the defaults are those of the published code.

    Parameters
    ----------
    loss : {"rank", "mse"}
        The published rank loss, or the mean squared error.
    pairs : {"task", "batch"}
        Where the rank loss forms pairs: inside tasks, or over the whole batch as published.
    epochs, batch : int
        Largest number of epochs; candidates a batch.
    learning_rate, weight_decay, gradient_norm : float
        Of Adam; the gradient is clipped to the norm.
    patience : int
        Epochs without a better validation ranking before training stops.
    max_number : float
        Tasks whose rows hold a larger number are not trained on.
    max_candidates : int
        Candidates a task takes part with in one epoch, drawn anew each epoch; 0 for all.
    seed : int
        Of initialisation, order and draws.
    """

    loss: Literal["rank", "mse"] = "rank"
    pairs: Literal["task", "batch"] = "task"
    epochs: int = 50
    batch: int = 1024
    learning_rate: float = 7e-4
    weight_decay: float = 1e-6
    gradient_norm: float = 0.5
    patience: int = 5
    max_number: float = math.inf
    max_candidates: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Fit:
    """A trained network: the epoch that ranked the validation tasks best, and how it did."""

    network: PublishedNetwork
    epoch: int
    validation: Ranking


def fit(
    train: TrainingSet, validation: TrainingSet, settings: FitSettings, device: str = "cpu", label: str = ""
) -> Fit:
    """Train the published network until the ranking of the validation tasks stops getting better.

    Raises
    ------
    TrainingDiverged
        If the loss is not finite.
    """
    torch.manual_seed(settings.seed)
    random = np.random.default_rng(settings.seed)
    network = PublishedNetwork(train.table.shape[1]).to(device)
    optimizer = torch.optim.Adam(
        network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    table = torch.from_numpy(train.table).to(device)
    best: Fit | None = None
    for epoch in range(settings.epochs):
        started = time.monotonic()
        loss = _run_epoch(network, optimizer, table, train, settings, random, f"{label} epoch {epoch}")
        ranking = rank_set(network, validation, device)
        log.info(
            "%s epoch %d: loss %.4f, held-out tasks: top-1 %.3f, top-5 %.3f, pairs %.3f (%.0f s)",
            label,
            epoch,
            loss,
            ranking.top1_mean,
            ranking.top5_mean,
            ranking.pair_accuracy,
            time.monotonic() - started,
        )
        if best is None or ranking.quality > best.validation.quality:
            best = Fit(copy.deepcopy(network), epoch, ranking)
        elif epoch - best.epoch >= settings.patience:
            break
    assert best is not None, "one epoch at least"
    return best


def _run_epoch(
    network: PublishedNetwork,
    optimizer: torch.optim.Optimizer,
    table: Tensor,
    train: TrainingSet,
    settings: FitSettings,
    random: np.random.Generator,
    title: str,
) -> float:
    network.train()
    device = table.device
    batches = list(_batches(train, settings, random))
    total = 0.0
    for positions, labels in tqdm(batches, desc=title, unit="batch", leave=False, disable=None):
        targets = torch.from_numpy(labels).to(device)
        scores = network.score_distinct(table, torch.from_numpy(positions).to(device)).view(targets.shape)
        loss = rank_loss(scores, targets) if settings.loss == "rank" else mse_loss(scores, targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        torch.nn.utils.clip_grad_norm_(network.parameters(), settings.gradient_norm)
        optimizer.step()
        total += float(loss.detach())
        if not math.isfinite(total):
            raise TrainingDiverged(f"{title}: the loss is not finite; try a smaller --learning-rate")
    return total / max(1, len(batches))


def _batches(
    train: TrainingSet, settings: FitSettings, random: np.random.Generator
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """Yield ``(positions (lists * length, steps), labels (lists, length))`` in random order."""
    drawn = [_draw(task, settings.max_candidates, random) for task in train.tasks]
    if settings.pairs == "batch" or settings.loss == "mse":
        positions = np.concatenate([task.positions[rows] for task, rows in drawn])
        labels = np.concatenate([task.labels[rows] for task, rows in drawn])
        order = random.permutation(len(labels))
        for start in range(0, len(order), settings.batch):
            rows = order[start : start + settings.batch]
            yield positions[rows].astype(np.int64), labels[rows][None, :]
        return
    lists = [_lists(task, rows) for task, rows in drawn]
    positions = np.concatenate([p for p, _ in lists])
    labels = np.concatenate([y for _, y in lists])
    order = random.permutation(len(labels))
    per_batch = max(1, settings.batch // LIST_LENGTH)
    for start in range(0, len(order), per_batch):
        rows = order[start : start + per_batch]
        yield positions[rows].reshape(-1, positions.shape[-1]).astype(np.int64), labels[rows]


def _draw(
    task: TrainingTask, limit: int, random: np.random.Generator
) -> tuple[TrainingTask, npt.NDArray[np.int64]]:
    rows = random.permutation(len(task.costs))
    return task, rows[:limit] if limit else rows


def _lists(
    task: TrainingTask, rows: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Cut a task's candidates into lists of `LIST_LENGTH`; the last is filled up with label NaN."""
    padded = np.resize(rows, (-(-len(rows) // LIST_LENGTH), LIST_LENGTH))
    labels = task.labels[padded]
    labels.reshape(-1)[len(rows) :] = np.nan
    return task.positions[padded], labels


@torch.inference_mode()
def predict(
    network: PublishedNetwork,
    table: npt.NDArray[np.float32],
    positions: npt.NDArray[np.int32],
    device: str = "cpu",
) -> npt.NDArray[np.float64]:
    """Return the raw scores of candidates, shape (candidates,)."""
    network.eval()
    rows = torch.from_numpy(table).to(device)
    scores = [
        network.score_distinct(
            rows, torch.from_numpy(positions[start : start + 256].astype(np.int64)).to(device)
        )
        for start in range(0, len(positions), 256)
    ]
    return torch.cat(scores).double().cpu().numpy()


def rank_set(network: PublishedNetwork, tested: TrainingSet, device: str = "cpu") -> Ranking:
    """Return how well the network ranks the candidates of each task of a set; see `ranked_tasks`."""
    return rank_tasks(
        (predict(network, tested.table, task.positions, device), task.costs) for task in ranked_tasks(tested)
    )


def ranked_tasks(tested: TrainingSet) -> list[TrainingTask]:
    """Return the tasks with enough candidates to rank, or all where none has.

    The best 5 of 6 candidates hold the best one under any model; such tasks would only blur the figures.
    """
    return [t for t in tested.tasks if len(t.costs) >= RANKED_CANDIDATES] or list(tested.tasks)
