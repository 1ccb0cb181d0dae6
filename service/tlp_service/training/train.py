"""``tlp train``: from tuning logs to a model version."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from tlp_client.records import Record
from tlp_client.tasks import PlatformKind
from tlp_service.errors import BadRecords, BadSettings
from tlp_service.evaluation.ranking import Ranking, random_ranking
from tlp_service.models.export import Sample, export_onnx
from tlp_service.records.files import log_files
from tlp_service.records.platforms import OnePlatform, PlatformTable, check_platform
from tlp_service.records.reader import stored_records, stored_sources
from tlp_service.records.split import Part, parts_by_source, parts_by_workload
from tlp_service.records.store import RecordStore, is_store
from tlp_service.scoring.score_map import fit_score_map
from tlp_service.training.dataset import (
    ImportReport,
    TrainingSet,
    build_sets,
    read_records,
    share_of,
    shuffled_parts,
    split_set,
    valid_records,
    without_large_numbers,
)
from tlp_service.training.fit import JUDGED_CANDIDATES, FitSettings, fit, predict, rank_set, ranked_tasks
from tlp_service.training.parallel import processes, rank
from tlp_service.training.presets import Exported, Preset
from tlp_service.versions.manifest import (
    SCHEMA,
    Manifest,
    Network,
    read_manifest,
    sha256_of,
    version_name,
    write_version,
)

log = logging.getLogger(__name__)

#: shares of the workloads of logs that are held back for early stopping and for the figures of the model card
HELD_BACK = (0.1, 0.1)
#: refused lines that are named one by one
SHOWN_REFUSALS = 20
#: candidates from which the score map is made, and by which the export is checked
SAMPLED, CHECKED = 4096, 2048


@dataclass(frozen=True, slots=True)
class TrainCommand:
    """What ``tlp train`` was asked for.

    Parameters
    ----------
    records : tuple of Path
        One record store; or logs, or folders of logs.
    out : Path
        Folder that gets the version.
    preset : Preset
        What to train.
    fit : FitSettings
        How to train.
    platforms : PlatformTable or None
        Platform of each record of logs by folder.
    platform : str or None
        One platform for all records of logs; without it and a table, ``cpu`` or ``gpu`` after the target. Of a store, the
        platforms (separated by commas) whose records are used; all without it.
    without : tuple of str
        Platforms whose records are not used.
    kinds : tuple of str
        Platform kinds to train a network for, where there are records.
    source : Path or None
        Folder of a version whose networks the training begins from.
    share : dict
        Platform -> share of the candidates of its tasks that is trained on; 1 where nothing is said.
    split : {"workload", "source"}
        Of a store: what is held together, see `tlp_service.records.split`.
    device : str
        Of torch.
    checkpoint : Path or None
        Folder that keeps the progress of the training.
    """

    records: tuple[Path, ...]
    out: Path
    preset: Preset
    fit: FitSettings
    platforms: PlatformTable | None = None
    platform: str | None = None
    without: tuple[str, ...] = ()
    kinds: tuple[PlatformKind, ...] = ("cpu", "gpu")
    source: Path | None = None
    share: dict[str, float] = field(default_factory=dict)
    split: Literal["workload", "source"] = "workload"
    device: str = "cpu"
    checkpoint: Path | None = None


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
    BadVersion
        If the source is damaged, or of another model.
    """
    _check(command)
    report = ImportReport()
    begins = _begins_from(command)
    sources = _sources(command, begins)
    store = _store(command)
    encoders = {
        kind: command.preset.encoder(kind, sources[kind][0] if kind in sources else None)
        for kind in command.kinds
    }
    sets = build_sets(_records(command, store, report), encoders, report)
    _log_report(report)
    if not sets:
        raise BadRecords("no task with two or more valid records; " + _counts(report))
    _check_sets(command, sets, sources)
    # Split all before any is trained: a kind with too few workloads must not cost what another has learned.
    parts = None if store is None else _stored_parts(command, store, sets)
    splits = {kind: _split(kind, whole, parts, command) for kind, whole in sets.items()}
    with processes(command.device) as device, tempfile.TemporaryDirectory() as scratch:
        networks = [
            network
            for kind, split in splits.items()
            for network in _train_networks(kind, split, command, device, sources.get(kind), Path(scratch))
        ]
        files = {network.file: Path(scratch, network.file) for network in networks}
        name = command.preset.name
        settings = {**dataclasses.asdict(command.fit), "share": command.share, "split": command.split}
        manifest = Manifest(
            schema=SCHEMA,
            model=name,
            version=version_name(name, networks),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            networks=networks,
            training={
                "records": dict(report.counts),
                "settings": settings,
                "from": begins and begins.version,
            },
        )
        # All processes have the same networks.
        return write_version(command.out, manifest, files) if rank() == 0 else command.out / manifest.version


def _check(command: TrainCommand) -> None:
    """Find what would fail at the end before anything is trained."""
    if command.platform is not None:
        for name in command.platform.split(","):
            check_platform(name)
    try:
        torch.device(command.device)
        if command.device.startswith("cuda") and not torch.cuda.is_available():
            raise BadSettings(f"--device {command.device}: torch has no CUDA here")
    except RuntimeError as error:
        raise BadSettings(f"--device {command.device}: {str(error).splitlines()[0]}") from None
    for option, folder in (("--out", command.out), ("--checkpoint", command.checkpoint)):
        if folder is None:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise BadSettings(f"{option} {folder}: {error.strerror}") from None


def _check_sets(
    command: TrainCommand,
    sets: dict[PlatformKind, TrainingSet],
    sources: dict[PlatformKind, tuple[Network, Path]],
) -> None:
    found = {platform for whole in sets.values() for platform in whole.platforms}
    if unknown := sorted(set(command.share) - found):
        raise BadSettings(f"--share: no records of {', '.join(unknown)}")
    if command.source is not None and (lacking := sorted(set(sets) - set(sources))):
        raise BadSettings(
            f"--from {command.source}: it has no network for {lacking[0]}, of which there are records; "
            f"leave them out with --kinds {' '.join(sorted(sources))}"
        )


def _begins_from(command: TrainCommand) -> Manifest | None:
    """Return the manifest of the version to begin from, if there is one."""
    if command.source is None:
        return None
    manifest = read_manifest(command.source)
    if manifest.model != command.preset.name:
        raise BadSettings(
            f"--from {command.source}: it is a '{manifest.model}', not a '{command.preset.name}'"
        )
    return manifest


def _sources(command: TrainCommand, begins: Manifest | None) -> dict[PlatformKind, tuple[Network, Path]]:
    """Return the networks to begin from, and their files."""
    if command.source is None or begins is None:
        return {}
    return {n.platform_kind: (n, command.source / n.file) for n in begins.networks}


def _store(command: TrainCommand) -> RecordStore | None:
    first, *others = command.records
    return RecordStore(first) if not others and is_store(first) else None


def _records(
    command: TrainCommand, store: RecordStore | None, report: ImportReport
) -> Iterator[tuple[str, Record]]:
    if store is None:
        platform_of = command.platforms if command.platforms is not None else OnePlatform(command.platform)
        found = read_records(log_files(command.records), platform_of, report)
        return (pair for pair in found if pair[0] not in command.without)
    wanted = command.platform.split(",") if command.platform else store.platforms
    for option, names in (("platform", wanted), ("without", command.without), ("share", command.share)):
        if unknown := sorted(set(names) - set(store.platforms)):
            raise BadSettings(f"--{option}: the store has no records of {', '.join(unknown)}")
    used = [name for name in wanted if name not in command.without]
    return valid_records(stored_records(store, used), report)


def _stored_parts(
    command: TrainCommand, store: RecordStore, sets: dict[PlatformKind, TrainingSet]
) -> dict[str, Part]:
    """Return the part of each workload of a store."""
    if command.split == "source":
        return parts_by_source(stored_sources(store), store.seed)
    return parts_by_workload((task.workload for whole in sets.values() for task in whole.tasks), store.seed)


def _split(
    kind: PlatformKind, whole: TrainingSet, parts: dict[str, Part] | None, command: TrainCommand
) -> dict[str, TrainingSet]:
    """Split a set by the parts of its store, or without one by a shuffle of its workloads."""
    if parts is None:
        parts = shuffled_parts((task.workload for task in whole.tasks), HELD_BACK, command.fit.seed)
    train_set, validation, test = split_set(whole, parts)
    train_set = without_large_numbers(train_set, command.fit.max_number)
    for platform, share in command.share.items():
        train_set = share_of(train_set, share, {platform}, command.fit.seed)
    if not train_set.tasks:
        raise BadRecords(f"{kind}: no task without numbers above {command.fit.max_number:g}")
    split = {"train": train_set, "validation": validation, "test": test}
    for name, part in split.items():
        log.info("%s %s: %d tasks, %d candidates", kind, name, len(part.tasks), part.candidates)
    return split


def _train_networks(
    kind: PlatformKind,
    split: dict[str, TrainingSet],
    command: TrainCommand,
    device: str,
    source: tuple[Network, Path] | None,
    folder: Path,
) -> list[Network]:
    """Train for a platform kind, and export what the version gets of it."""
    train_set = split["train"]
    network = command.preset.network(train_set, command.fit, source)
    checkpoint = command.checkpoint and command.checkpoint / f"{kind}.safetensors"
    fitted = fit(network, train_set, split["validation"], command.fit, device, kind, checkpoint)
    exported = command.preset.exported(kind, fitted.network.cpu(), train_set)
    return [_export(kind, one, split, command, fitted.epoch, folder / f"{one.name}.onnx") for one in exported]


def _export(
    kind: PlatformKind,
    exported: Exported,
    split: dict[str, TrainingSet],
    command: TrainCommand,
    epoch: int,
    file: Path,
) -> Network:
    """Write the file of a network, and return what the manifest says of it."""
    split = {name: _of_platforms(part, exported.platforms) for name, part in split.items()}
    network, train_set, test = exported.network, split["train"], split["test"]
    validation = rank_set(network, split["validation"], most_candidates=JUDGED_CANDIDATES)
    metrics: dict[str, Any] = {"validation": dataclasses.asdict(validation)}
    if test.tasks:
        metrics["test"] = dataclasses.asdict(rank_set(network, test))
        metrics["test_random"] = dataclasses.asdict(random_ranking(task.costs for task in ranked_tasks(test)))
        _log_ranking(f"{exported.name}, unseen tasks, the model", metrics["test"])
        _log_ranking(f"{exported.name}, unseen tasks, random   ", metrics["test_random"])
    sample = _sample(train_set, SAMPLED)
    raw = predict(network, sample.table, sample.positions, sample.values)
    checked = Sample(sample.table, sample.positions[:CHECKED], sample.values[:CHECKED])
    difference = export_onnx(network, checked, file)
    log.info("%s: ONNX Runtime differs from torch by at most %.1e", exported.name, difference)
    steps, row_width = command.preset.shape(kind)
    return Network(
        platform_kind=kind,
        file=file.name,
        sha256=sha256_of(file),
        features=command.preset.features,
        steps=steps,
        row_width=row_width,
        platforms=list(exported.platforms),
        score_map=fit_score_map(raw),
        trained_on={
            name: {"tasks": len(part.tasks), "candidates": part.candidates} for name, part in split.items()
        }
        | {"epoch": epoch},
        metrics=metrics,
        architecture=network.architecture,
    )


def _sample(train_set: TrainingSet, count: int) -> Sample:
    lengths = [len(task.costs) for task in train_set.tasks]
    ends = np.cumsum(lengths)
    drawn = np.random.default_rng(0).permutation(ends[-1])[:count]
    owners = np.searchsorted(ends, drawn, side="right")
    chosen = [
        (train_set.tasks[n], row) for n, row in zip(owners, drawn - (ends - lengths)[owners], strict=True)
    ]
    positions = np.stack([task.positions[row] for task, row in chosen])
    return Sample(train_set.table, positions, np.stack([task.values[row] for task, row in chosen]))


def _of_platforms(whole: TrainingSet, platforms: tuple[str, ...]) -> TrainingSet:
    return dataclasses.replace(whole, tasks=tuple(t for t in whole.tasks if t.platform in platforms))


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
