"""``tlp train``: from tuning logs to a model version."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tlp_client.tasks import PlatformKind
from tlp_service.errors import BadRecords, BadSettings
from tlp_service.evaluation.ranking import Ranking, random_ranking
from tlp_service.features.published import PUBLISHED
from tlp_service.models.export import export_onnx
from tlp_service.records.files import log_files
from tlp_service.records.platforms import OnePlatform, PlatformOf, PlatformTable, check_platform
from tlp_service.scoring.score_map import fit_score_map
from tlp_service.training.dataset import (
    ImportReport,
    TrainingSet,
    build_sets,
    read_records,
    split_by_workload,
    without_large_numbers,
)
from tlp_service.training.fit import FitSettings, fit, predict, rank_set, ranked_tasks
from tlp_service.versions.manifest import (
    SCHEMA,
    Manifest,
    Network,
    sha256_of,
    version_name,
    write_version,
)

log = logging.getLogger(__name__)

MODEL = "published"
#: shares of the workloads held back for early stopping and for the figures of the model card
HELD_BACK = (0.1, 0.1)
#: refused lines that are named one by one
SHOWN_REFUSALS = 20


@dataclass(frozen=True, slots=True)
class TrainCommand:
    """What ``tlp train`` was asked for.

    Parameters
    ----------
    records : tuple of Path
        Logs or folders of logs.
    out : Path
        Folder that gets the version.
    platforms : PlatformTable or None
        Platform of each record by folder.
    platform : str or None
        One platform for all records; without it and a table, ``cpu`` or ``gpu`` after the target.
    kinds : tuple of str
        Platform kinds to train a network for, where there are records.
    device : str
        Of torch.
    fit : FitSettings
        How to train.
    """

    records: tuple[Path, ...]
    out: Path
    platforms: PlatformTable | None = None
    platform: str | None = None
    kinds: tuple[PlatformKind, ...] = ("cpu", "gpu")
    device: str = "cpu"
    fit: FitSettings = field(default_factory=FitSettings)


def train(command: TrainCommand) -> Path:
    """Train a network a platform kind, export and check them, and write the version.

    Returns
    -------
    Path
        Folder of the version.

    Raises
    ------
    BadRecords
        If no record can be trained on.
    """
    _check(command)
    report = ImportReport()
    features = {kind: PUBLISHED[kind] for kind in command.kinds}
    records = read_records(log_files(command.records), _platform_of(command), report)
    sets = build_sets(records, features, report)
    _log_report(report)
    if not sets:
        raise BadRecords("no task with two or more valid records; " + _counts(report))
    # Split all before any is trained: a kind with too few workloads must not cost what another has learned.
    splits = {kind: _split(kind, whole, command.fit) for kind, whole in sets.items()}
    with tempfile.TemporaryDirectory() as scratch:
        files = {f"{kind}.onnx": Path(scratch, f"{kind}.onnx") for kind in splits}
        networks = [
            _train_network(kind, split, command, files[f"{kind}.onnx"]) for kind, split in splits.items()
        ]
        manifest = Manifest(
            schema=SCHEMA,
            model=MODEL,
            version=version_name(MODEL, networks),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            networks=networks,
            training={"records": dict(report.counts), "settings": dataclasses.asdict(command.fit)},
        )
        return write_version(command.out, manifest, files)


def _check(command: TrainCommand) -> None:
    """Find what would fail at the end before anything is trained."""
    if command.platform is not None:
        check_platform(command.platform)
    try:
        torch.device(command.device)
        if command.device.startswith("cuda") and not torch.cuda.is_available():
            raise BadSettings(f"--device {command.device}: torch has no CUDA here")
        command.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=command.out):
            pass
    except RuntimeError as error:
        raise BadSettings(f"--device {command.device}: {str(error).splitlines()[0]}") from None
    except OSError as error:
        raise BadSettings(f"--out {command.out}: {error.strerror}") from None


def _platform_of(command: TrainCommand) -> PlatformOf:
    return command.platforms if command.platforms is not None else OnePlatform(command.platform)


def _split(kind: PlatformKind, whole: TrainingSet, settings: FitSettings) -> dict[str, TrainingSet]:
    train_set, validation, test = split_by_workload(whole, HELD_BACK, settings.seed)
    train_set = without_large_numbers(train_set, settings.max_number)
    if not train_set.tasks:
        raise BadRecords(f"{kind}: no task without numbers above {settings.max_number:g}")
    split = {"train": train_set, "validation": validation, "test": test}
    for name, part in split.items():
        log.info("%s %s: %d tasks, %d candidates", kind, name, len(part.tasks), part.candidates)
    return split


def _train_network(
    kind: PlatformKind, split: dict[str, TrainingSet], command: TrainCommand, file: Path
) -> Network:
    train_set, validation, test = split["train"], split["validation"], split["test"]
    fitted = fit(train_set, validation, command.fit, command.device, kind)
    network = fitted.network.cpu()
    metrics = {
        "test": dataclasses.asdict(rank_set(network, test)),
        "test_random": dataclasses.asdict(random_ranking(task.costs for task in ranked_tasks(test))),
        "validation": dataclasses.asdict(fitted.validation),
    }
    _log_ranking(f"{kind}, unseen tasks, the model", metrics["test"])
    _log_ranking(f"{kind}, unseen tasks, random   ", metrics["test_random"])
    sample = _sample(train_set, 4096)
    raw = predict(network, train_set.table, sample)
    difference = export_onnx(network, train_set.table, sample[:2048], file)
    log.info("%s: ONNX Runtime differs from torch by at most %.1e", kind, difference)
    features = PUBLISHED[kind]
    return Network(
        platform_kind=kind,
        file=file.name,
        sha256=sha256_of(file),
        features="published",
        steps=features.steps,
        row_width=features.width,
        platforms=sorted({p for part in split.values() for p in part.platforms}),
        score_map=fit_score_map(raw),
        trained_on={
            name: {"tasks": len(part.tasks), "candidates": part.candidates} for name, part in split.items()
        }
        | {"epoch": fitted.epoch},
        metrics=metrics,
    )


def _sample(train_set: TrainingSet, count: int) -> npt.NDArray[np.int32]:
    positions = np.concatenate([task.positions for task in train_set.tasks])
    rows = np.random.default_rng(0).permutation(len(positions))[:count]
    return positions[rows]


def _log_ranking(title: str, figures: dict[str, Any]) -> None:
    ranking = Ranking(**figures)
    log.info(
        "%s: top-1 %.3f pooled, %.3f mean over %d tasks; top-5 %.3f pooled, %.3f mean; pair accuracy %.3f",
        title,
        ranking.top1_pooled,
        ranking.top1_mean,
        ranking.tasks,
        ranking.top5_pooled,
        ranking.top5_mean,
        ranking.pair_accuracy,
    )


def _log_report(report: ImportReport) -> None:
    for cause, count in sorted(report.counts.items()):
        log.info("records %s: %d", cause, count)
    for refused in report.refused[:SHOWN_REFUSALS]:
        log.warning("%s", refused)
    if len(report.refused) > SHOWN_REFUSALS:
        log.warning("… and %d lines more", len(report.refused) - SHOWN_REFUSALS)


def _counts(report: ImportReport) -> str:
    return (
        "; ".join(f"{cause}: {count}" for cause, count in sorted(report.counts.items()))
        or "no records at all"
    )
