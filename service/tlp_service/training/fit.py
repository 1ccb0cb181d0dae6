"""Fits a network to a training set."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from tqdm import tqdm

from tlp_service.errors import TrainingDiverged
from tlp_service.ranking.ranking import Ranking, rank_tasks
from tlp_service.training.checkpoint import Checkpoint, Progress
from tlp_service.training.dataset import TrainingSet, TrainingTask
from tlp_service.training.losses import log_mse_loss, mse_loss, pair_loss, rank_loss, validity_loss
from tlp_service.training.network import TrainableNetwork
from tlp_service.training.parallel import average_gradients, rank, world_size

log = logging.getLogger(__name__)

#: Number of candidates per list if pairs are formed inside tasks.
LIST_LENGTH = 32
#: candidates of a task whose ranking counts
RANKED_CANDIDATES = 16
#: Share of the steps in which the learning rate of the one-cycle schedule rises.
WARM_UP = 0.1
#: Maximum candidates of a task by which an epoch is judged.
JUDGED_CANDIDATES = 512

Loss = Literal["rank", "mse", "combined", "validity"]

_LOSSES: dict[Loss, Callable[[Tensor, Tensor], Tensor]] = {
    "rank": rank_loss,
    "mse": mse_loss,
    "validity": validity_loss,
    "combined": lambda scores, labels: log_mse_loss(scores, labels) + pair_loss(scores, labels),
}


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How to train; the defaults are those of the published code.

    Parameters
    ----------
    loss : {"rank", "mse", "combined", "validity"}
        The published rank loss; the mean squared error of the label; that of the log label and logistic pairs;
        or, for a `tlp_service.training.validity.validity_set`, cross-entropy.
    pairs : {"task", "batch"}
        Where lists are formed: inside tasks, or over the whole batch as published.
    epochs, batch : int
        Largest number of epochs; candidates a batch.
    learning_rate, weight_decay, gradient_norm : float
        Of Adam; the gradient is clipped to the norm.
    schedule : {"constant", "one-cycle"}
        Of the learning rate; one-cycle (Smith 2018) also decouples the weight decay (AdamW).
    average : float
        Factor of the exponential moving average of the weights that is judged and kept; 0 for the weights themselves.
    judge : {"quality", "pairs"}
        The validation metric that selects the best epoch: the mean of top-1, top-5 and pair accuracy, or pair accuracy
        alone, which fluctuates least.
    patience : int
        Epochs without a better validation ranking before training stops.
    max_number : float
        Tasks whose rows hold a larger number are not trained on.
    max_candidates : int
        Maximum number of candidates per task and epoch, drawn anew each epoch; 0 for all.
    unknown_platforms : float
        Share of the lists to train on as if their platform were unknown to the version.
    fewest_steps : int
        Minimum number of steps; with few candidates, there are more epochs to reach it.
    seed : int
        Seed of the initialisation, the order of batches and all sampling.
    """

    loss: Loss = "rank"
    pairs: Literal["task", "batch"] = "task"
    epochs: int = 50
    batch: int = 1024
    learning_rate: float = 7e-4
    weight_decay: float = 1e-6
    gradient_norm: float = 0.5
    schedule: Literal["constant", "one-cycle"] = "constant"
    average: float = 0.0
    judge: Literal["quality", "pairs"] = "quality"
    patience: int = 5
    max_number: float = math.inf
    max_candidates: int = 0
    unknown_platforms: float = 0.0
    fewest_steps: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Fit:
    """A trained network: the epoch that ranked the validation tasks best, and how it did."""

    network: TrainableNetwork
    epoch: int
    validation: Ranking


@dataclass(frozen=True, slots=True)
class _Batch:
    """Candidates of a step.

    Parameters
    ----------
    positions, values : ndarray, shape (candidates, …)
        See `TrainingTask`.
    labels : ndarray, shape (lists, candidates a list)
        NaN where a list is padded.
    """

    positions: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]
    labels: npt.NDArray[np.float32]


def fit(
    network: TrainableNetwork,
    train: TrainingSet,
    validation: TrainingSet,
    settings: FitSettings,
    device: str = "cpu",
    label: str = "",
    checkpoint: Path | None = None,
) -> Fit:
    """Train a network until the ranking of the validation tasks stops getting better.

    Parameters
    ----------
    network : TrainableNetwork
        Trained in place; initialised, or trained before.
    checkpoint : Path or None
        File that keeps the progress of each epoch, and from which an interrupted run goes on.

    Raises
    ------
    TrainingDiverged
        If the loss is not finite.
    BadVersion
        If the checkpoint is of another network or other settings.
    """
    epochs = max(settings.epochs, -(-settings.fewest_steps // max(1, _steps_an_epoch(train, settings))))
    settings = replace(settings, epochs=epochs)
    random = np.random.default_rng(settings.seed)
    network = network.to(device)
    optimizer = _optimizer(network, settings)
    table = torch.from_numpy(train.table).to(device)
    progress = Progress(network, optimizer, random, settings.average)
    saved = None
    if checkpoint is not None:
        saved = Checkpoint(checkpoint, settings, _identity(network, train, validation))
    if saved is not None and saved.load(progress):
        log.info("%s: goes on after epoch %d of %s", label, progress.epoch, checkpoint)
    while progress.epoch < settings.epochs and not progress.is_stuck(settings.patience):
        _train_epoch(progress, table, train, validation, settings, label)
        if saved is not None and rank() == 0:
            saved.save(progress)
    best = progress.best
    assert best is not None, "one epoch at least"
    network.load_state_dict(best.weights)
    return Fit(network.eval(), best.epoch, best.ranking)


def _train_epoch(
    progress: Progress,
    table: Tensor,
    train: TrainingSet,
    validation: TrainingSet,
    settings: FitSettings,
    label: str,
) -> None:
    """Run one epoch, judge it by the validation tasks, and log both."""
    started = time.monotonic()
    # So that an epoch draws the same after an interruption, and each process its own.
    torch.manual_seed(hash((settings.seed, progress.epoch, rank())) % 2**63)
    loss = _run_epoch(progress, table, train, settings, label)
    ranking = rank_set(progress.judged(), validation, str(table.device), JUDGED_CANDIDATES)
    progress.end_epoch(ranking, ranking.quality if settings.judge == "quality" else ranking.pair_accuracy)
    took = time.monotonic() - started
    log.info("%s epoch %d: loss %.4f%s (%.0f s)", label, progress.epoch, loss, _told(ranking), took)


def _told(ranking: Ranking) -> str:
    if not ranking.tasks:
        return ""
    figures = (ranking.top1_mean, ranking.top5_mean, ranking.pair_accuracy)
    return ", held-out tasks: top-1 {:.3f}, top-5 {:.3f}, pairs {:.3f}".format(*figures)


def _identity(network: TrainableNetwork, train: TrainingSet, validation: TrainingSet) -> str:
    """Return a digest of what a training begins with: weights and records."""
    digest = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    for part in (train, validation):
        for task in part.tasks:
            digest.update(repr((task.platform, task.workload)).encode() + task.costs.tobytes())
    return digest.hexdigest()


def _optimizer(network: TrainableNetwork, settings: FitSettings) -> torch.optim.Optimizer:
    kind = torch.optim.Adam if settings.schedule == "constant" else torch.optim.AdamW
    return kind(network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)


def _rate(settings: FitSettings, step: int, steps: int) -> float:
    """Return the learning rate of a step, of the one-cycle schedule with cosines."""
    if settings.schedule == "constant":
        return settings.learning_rate
    rising = WARM_UP * steps
    if step < rising:
        return settings.learning_rate * (0.04 + 0.96 * (1 - math.cos(math.pi * step / rising)) / 2)
    falling = min(1.0, (step - rising) / max(1.0, steps - rising))
    return settings.learning_rate * max(1e-4, (1 + math.cos(math.pi * falling)) / 2)


def _run_epoch(
    progress: Progress,
    table: Tensor,
    train: TrainingSet,
    settings: FitSettings,
    label: str,
) -> float:
    network, optimizer = progress.network, progress.optimizer
    network.train()
    device = table.device
    loss_of = _LOSSES[settings.loss]
    steps = _steps_an_epoch(train, settings)
    batches = _batches(train, settings, progress.random)
    total = 0.0
    title = f"{label} epoch {progress.epoch + 1}"
    for number, batch in enumerate(
        tqdm(batches, desc=title, total=steps, unit="batch", leave=False, disable=None)
    ):
        for group in optimizer.param_groups:
            group["lr"] = _rate(settings, progress.epoch * steps + number, settings.epochs * steps)
        positions, values, labels = _mine(batch, device)
        rows = _without_platforms(table, positions, labels.shape, settings, network)
        # Each member learns on its own: what makes their mean better than each is that they differ.
        scores = network.member_scores(rows, positions, values)
        loss = loss_of(scores.reshape(-1, labels.shape[1]), labels.repeat(len(scores), 1))
        if settings.loss == "rank":
            loss = loss * (len(batch.labels) / len(labels))  # a sum over lists, of which these are a part
        total += loss.item()
        # An inf would stay out of sight: clipped, its gradients are zeros.
        if not math.isfinite(total):
            raise TrainingDiverged(f"{title}: the loss is not finite; try a smaller --learning-rate")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        average_gradients(network)
        torch.nn.utils.clip_grad_norm_(network.parameters(), settings.gradient_norm)
        optimizer.step()
        progress.average()
    return total / max(1, steps)


def _mine(batch: _Batch, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the part of a batch that this process computes: every n-th list of n processes."""
    lists, length = batch.labels.shape
    own = slice(rank(), None, world_size()) if lists >= world_size() else slice(None)
    positions, values, labels = (
        torch.from_numpy(array).to(device) for array in (batch.positions, batch.values, batch.labels)
    )
    return (
        torch.unflatten(positions, 0, (lists, length))[own].flatten(0, 1),
        torch.unflatten(values, 0, (lists, length))[own].flatten(0, 1),
        labels[own],
    )


def _without_platforms(
    table: Tensor, positions: Tensor, shape: torch.Size, settings: FitSettings, network: TrainableNetwork
) -> Tensor:
    """Return the table with added rows without a platform, and let the drawn lists refer to them."""
    if not settings.unknown_platforms or network.platforms_from is None:
        return table
    drawn = torch.rand(shape[0], device=table.device) < settings.unknown_platforms
    lists = positions.view(shape[0], -1)
    used, number = torch.unique(lists[drawn], return_inverse=True)
    rows = table[used]
    rows[:, network.platforms_from :] = 0.0
    lists[drawn] = len(table) + number
    return torch.cat([table, rows])


def _list_length(settings: FitSettings) -> int:
    """Return the candidates of a list; 1 for losses that know of no lists, for which a batch is one."""
    return 1 if settings.pairs == "batch" or settings.loss == "mse" else LIST_LENGTH


def _lists_a_batch(settings: FitSettings) -> int:
    return max(1, settings.batch // _list_length(settings))


def _steps_an_epoch(train: TrainingSet, settings: FitSettings) -> int:
    """Return how many batches `_batches` yields."""
    limit = settings.max_candidates or max((len(task.costs) for task in train.tasks), default=0)
    lists = sum(-(-min(len(task.costs), limit) // _list_length(settings)) for task in train.tasks)
    return -(-lists // _lists_a_batch(settings))


def _batches(train: TrainingSet, settings: FitSettings, random: np.random.Generator) -> Iterator[_Batch]:
    length, per_batch = _list_length(settings), _lists_a_batch(settings)
    drawn = [_draw(task, settings.max_candidates, random) for task in train.tasks]
    lists = [(n, rows) for n, all_rows in enumerate(drawn) for rows in _lists(all_rows, length)]
    labels_of = [train.labels(task.costs) for task in train.tasks]
    order = random.permutation(len(lists))
    for start in range(0, len(order), per_batch):
        # A list's padding has row -1: it is read as the first candidate, with a label that takes it out.
        chosen = [lists[n] for n in order[start : start + per_batch]]
        positions = np.concatenate([train.tasks[n].positions[rows.clip(0)] for n, rows in chosen])
        values = np.concatenate([train.tasks[n].values[rows.clip(0)] for n, rows in chosen])
        labels = np.stack([np.where(rows < 0, np.nan, labels_of[n][rows]) for n, rows in chosen])
        if length == 1:
            labels = labels.reshape(1, -1)
        yield _Batch(positions.astype(np.int64), values.astype(np.float32), labels.astype(np.float32))


def _draw(task: TrainingTask, limit: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    rows = random.permutation(len(task.costs))
    return rows[:limit] if limit else rows


def _lists(rows: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """Cut a task's candidates into lists; the last is filled up with -1."""
    padded = np.full(-(-len(rows) // length) * length, -1, dtype=np.int64)
    padded[: len(rows)] = rows
    return padded.reshape(-1, length)


@torch.inference_mode()
def predict(
    network: TrainableNetwork,
    table: npt.NDArray[np.float32],
    positions: npt.NDArray[np.int32],
    values: npt.NDArray[np.float16],
    device: str = "cpu",
) -> npt.NDArray[np.float64]:
    """Return the raw scores of candidates, shape (candidates,)."""
    network.eval()
    rows = torch.from_numpy(table).to(device)
    scores = [
        network.score_distinct(
            rows,
            torch.from_numpy(positions[start : start + 256].astype(np.int64)).to(device),
            torch.from_numpy(values[start : start + 256].astype(np.float32)).to(device),
        )
        for start in range(0, len(positions), 256)
    ]
    return torch.cat(scores).double().cpu().numpy()


def predict_task(
    network: TrainableNetwork, table: npt.NDArray[np.float32], task: TrainingTask, device: str = "cpu"
) -> npt.NDArray[np.float64]:
    """Return the raw scores of a task's candidates."""
    return predict(network, table, task.positions, task.values, device)


def rank_set(
    network: TrainableNetwork, tested: TrainingSet, device: str = "cpu", max_candidates: int = 0
) -> Ranking:
    """Return how well the network ranks the candidates of each task of a set; see `ranked_tasks`.

    Parameters
    ----------
    max_candidates : int
        Of a task that has more, so many are drawn, always the same; 0 for all.
    """
    return rank_tasks(
        (predict_task(network, tested.table, task, device), task.costs)
        for task in (_sampled(task, max_candidates) for task in ranked_tasks(tested))
    )


def _sampled(task: TrainingTask, max_candidates: int) -> TrainingTask:
    if not max_candidates or len(task.costs) <= max_candidates:
        return task
    return task.some(np.random.default_rng(0).permutation(len(task.costs))[:max_candidates])


def ranked_tasks(tested: TrainingSet) -> list[TrainingTask]:
    """Return the tasks with enough candidates to rank, or all where none has.

    The best 5 of 6 candidates hold the best one under any model; such tasks would only blur the figures.
    """
    return [t for t in tested.tasks if len(t.costs) >= RANKED_CANDIDATES] or list(tested.tasks)
