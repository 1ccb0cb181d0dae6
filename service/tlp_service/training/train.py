"""``tlp train``: from tuning logs to a model version."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from tlp_client.records import Record
from tlp_client.tasks import PlatformKind
from tlp_service.errors import BadRecords, BadSettings
from tlp_service.records.files import log_files
from tlp_service.records.platform_table import OnePlatform, PlatformTable, check_platform
from tlp_service.records.reader import stored_records, stored_sources
from tlp_service.records.split import Part, parts_by_source, parts_by_workload
from tlp_service.records.store import RecordStore
from tlp_service.records.store_path import is_store
from tlp_service.training.dataset import (
    ImportReport,
    TrainingSet,
    build_sets,
    of_platforms,
    read_records,
    share_of,
    shuffled_parts,
    split_set,
    valid_records,
    without_large_numbers,
)
from tlp_service.training.fit import FitSettings
from tlp_service.training.networks import KindTraining, with_kept
from tlp_service.training.parallel import processes, rank
from tlp_service.training.preset import Preset
from tlp_service.versions.manifest import Manifest, read_manifest, write_version

log = logging.getLogger(__name__)

#: Of a set: to learn from, to choose the epoch by, for the figures.
Parts = tuple[TrainingSet, TrainingSet, TrainingSet]

#: shares of the workloads of logs that are held back for early stopping and for the figures of the model card
HELD_BACK = (0.1, 0.1)
#: refused lines that are named one by one
SHOWN_REFUSALS = 20


@dataclass(frozen=True, slots=True)
class TrainCommand:
    """The options of ``tlp train``.

    Parameters
    ----------
    records : tuple of Path
        One record store; or logs, or folders of logs.
    out : Path
        Folder that gets the version.
    preset : Preset
        The model to train.
    fit : FitSettings
        The settings for training.
    platforms : PlatformTable or None
        Platform of each record of logs by folder.
    platform : str or None
        One platform for all records of logs; without it and a table, ``cpu`` or ``gpu`` after the target. Of a
        store, the platforms (separated by commas) whose records are used; all without it.
    without : tuple of str
        Platforms whose records are not used.
    kinds : tuple of str
        Platform kinds to train a network for, where there are records.
    source : Path or None
        Folder of a version to fine-tune. Each platform with records gets a network of its own, which starts from the
        version's network for that platform; all other networks are kept.
    share : dict
        Platform -> share of its tasks' candidates to train on; 1 for other platforms.
    split : {"workload", "source"}
        For a store: the grouping of records for the split, see `tlp_service.records.split`.
    device : str
        Name of the torch device.
    checkpoint : Path or None
        Folder of the checkpoints.
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
    """Train one network per platform kind, export and check them, and write the version.

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
    splits = _read_splits(command, begins, report)
    with processes(command.device) as device, tempfile.TemporaryDirectory() as scratch:
        networks = [
            network
            for kind, parts_of_kind in splits.items()
            for training in _trainings(command, begins, device, kind, parts_of_kind)
            for network in training.run(Path(scratch))
        ]
        if begins is not None and command.source is not None:
            networks = with_kept(networks, begins, command.source, Path(scratch))
        files = {name: Path(scratch, name) for network in networks for name in network.files}
        settings = {**dataclasses.asdict(command.fit), "share": command.share, "split": command.split}
        training = {
            "records": dict(report.counts),
            "settings": settings,
            "from": begins and begins.version,
        }
        manifest = Manifest.of_now(command.preset.name, networks, training)
        # All processes have the same networks.
        return write_version(command.out, manifest, files) if rank() == 0 else command.out / manifest.version


def _read_splits(
    command: TrainCommand, begins: Manifest | None, report: ImportReport
) -> dict[PlatformKind, Parts]:
    """Return the records of each kind, split into parts."""
    store = _store(command)
    encoders = {
        kind: command.preset.encoder(kind, begins.numbered(kind) if begins is not None else ())
        for kind in command.kinds
    }
    sets = build_sets(_records(command, store, report), encoders, report)
    _log_report(report)
    if not sets:
        raise BadRecords("no task with two or more valid records; " + _counts(report))
    _check_sets(command, sets, begins)
    # Split all before any is trained: a kind with too few workloads must not cost what another has learned.
    parts = None if store is None else _stored_parts(command, store, sets)
    return {kind: _split(kind, whole, parts, command) for kind, whole in sets.items()}


def _trainings(
    command: TrainCommand, begins: Manifest | None, device: str, kind: PlatformKind, parts: Parts
) -> Iterator[KindTraining]:
    """Yield the training of a kind, or of each of its platforms if a version is fine-tuned."""
    if begins is None or command.source is None:
        yield KindTraining(
            kind, command.preset, command.fit, *parts, device=device, checkpoint=command.checkpoint
        )
        return
    for platform in parts[0].platforms:
        source = begins.serving(kind, platform)
        assert source is not None, "checked"
        train_set, validation, test = (of_platforms(part, {platform}) for part in parts)
        yield KindTraining(
            kind,
            command.preset,
            command.fit,
            train_set,
            validation,
            test,
            (source, command.source / source.file),
            device,
            command.checkpoint,
            serves=platform,
        )


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
    begins: Manifest | None,
) -> None:
    found = {platform for whole in sets.values() for platform in whole.platforms}
    if unknown := sorted(set(command.share) - found):
        raise BadSettings(f"--share: no records of {', '.join(unknown)}")
    if begins is None:
        return
    having = {network.platform_kind for network in begins.networks if network.serves is None}
    if lacking := sorted(set(sets) - having):
        raise BadSettings(
            f"--from {command.source}: it has no network for {lacking[0]}, of which there are records; "
            f"leave them out with --kinds {' '.join(sorted(having))}"
        )


def _begins_from(command: TrainCommand) -> Manifest | None:
    """Return the manifest of the version to begin from, if there is one."""
    if command.source is None:
        return None
    if not command.preset.continues:
        raise BadSettings(f"--from: a '{command.preset.name}' is trained from nothing only")
    manifest = read_manifest(command.source)
    if not command.preset.is_of(manifest.model):
        raise BadSettings(
            f"--from {command.source}: it is a '{manifest.model}', not a '{command.preset.name}'"
        )
    return manifest


def _store(command: TrainCommand) -> RecordStore | None:
    first, *others = command.records
    return RecordStore(first) if not others and is_store(first) else None


def _records(
    command: TrainCommand, store: RecordStore | None, report: ImportReport
) -> Iterator[tuple[str, Record]]:
    with_failed = command.preset.validity is not None
    dialects = command.preset.dialects
    if store is None:
        platform_of = command.platforms if command.platforms is not None else OnePlatform(command.platform)
        found = read_records(log_files(command.records), platform_of, report, with_failed, dialects)
        return (pair for pair in found if pair[0] not in command.without)
    wanted = command.platform.split(",") if command.platform else store.platforms
    for option, names in (("platform", wanted), ("without", command.without), ("share", command.share)):
        if unknown := sorted(set(names) - set(store.platforms)):
            raise BadSettings(f"--{option}: the store has no records of {', '.join(unknown)}")
    used = [name for name in wanted if name not in command.without]
    return valid_records(stored_records(store, used), report, with_failed, dialects)


def _stored_parts(
    command: TrainCommand, store: RecordStore, sets: dict[PlatformKind, TrainingSet]
) -> dict[str, Part]:
    """Return the part of each workload of a store."""
    if command.split == "source":
        return parts_by_source(stored_sources(store), store.seed)
    return parts_by_workload((task.workload for whole in sets.values() for task in whole.tasks), store.seed)


def _split(
    kind: PlatformKind, whole: TrainingSet, parts: dict[str, Part] | None, command: TrainCommand
) -> Parts:
    """Split a set by the parts of its store, or without one by a shuffle of its workloads."""
    if parts is None:
        parts = shuffled_parts((task.workload for task in whole.tasks), HELD_BACK, command.fit.seed)
    train_set, validation, test = split_set(whole, parts)
    train_set = without_large_numbers(train_set, command.fit.max_number)
    for platform, share in command.share.items():
        train_set = share_of(train_set, share, {platform}, command.fit.seed)
    if not train_set.tasks:
        raise BadRecords(f"{kind}: no task without numbers above {command.fit.max_number:g}")
    for name, part in (("train", train_set), ("validation", validation), ("test", test)):
        log.info("%s %s: %d tasks, %d candidates", kind, name, len(part.tasks), part.candidates)
    return train_set, validation, test


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
