"""One step of learning: from the serving version and the record store to a version that serves, or to one that is marked rejected."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tlp_client.tasks import PlatformKind
from tlp_service.errors import BadRecords
from tlp_service.features import base
from tlp_service.learning.gate import HeldBack, Verdict, judge
from tlp_service.records.reader import stored_records
from tlp_service.records.split import part_of
from tlp_service.records.store import RecordStore
from tlp_service.training.dataset import ImportReport, TrainingSet, TrainingTask, build_sets, valid_records
from tlp_service.training.fit import AnyNetwork, FitSettings, predict_task
from tlp_service.training.networks import KindTraining, keep
from tlp_service.training.presets import PRESETS, Preset
from tlp_service.versions.manifest import Manifest, Network, read_manifest, write_version
from tlp_service.versions.registry import Registry

log = logging.getLogger(__name__)

#: One in so many candidates of each task is held back for the gate, beside the tasks of the test part.
_HELD_BACK = 5
#: Records of a platform, the newest, that are learned from: it bounds time and memory.
NEWEST = 50_000
#: Fine-tuning: a third of the rate and of the epochs of a training from nothing.
_SETTINGS = dataclasses.replace(PRESETS["base"].settings, epochs=13, learning_rate=3e-4)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step of learning came to.

    Parameters
    ----------
    version : str or None
        The version that was made; None if none was.
    is_accepted : bool
        Whether it serves now.
    reason : str
        Why, or why not.
    """

    version: str | None
    is_accepted: bool
    reason: str


def learn(
    store: RecordStore,
    registry: Registry,
    settings: FitSettings = _SETTINGS,
    newest: int = NEWEST,
    may_publish: Callable[[], bool] = lambda: True,
) -> Outcome:
    """Fine-tune the serving version on the record store, publish the result, and let it serve if the gate accepts it.

    A version that is not accepted is published, too, and marked rejected with its figures.

    Parameters
    ----------
    store : RecordStore
        What was measured.
    registry : Registry
        Where versions are.
    settings : FitSettings
        How to train.
    newest : int
        Records of each platform that are learned from, the newest ones.
    may_publish : callable
        Asked before anything is published: what took too long may be another's turn by now.
    """
    active = registry.journal().active
    if active is None:
        return Outcome(None, False, "no version serves")
    with registry.checkout(active) as folder, tempfile.TemporaryDirectory() as scratch:
        step = _Step(folder, store, settings, newest)
        if (fault := step.prepare()) is not None:
            return Outcome(None, False, fault)
        step.train(Path(scratch, "files"))
        verdict = judge(step.held_back())
        written = write_version(Path(scratch, "version"), step.manifest(verdict), step.files)
        if not may_publish():
            return Outcome(None, False, "another trainer's turn came before this one was done")
        return _publish(registry, active, written, verdict)


def _publish(registry: Registry, active: str, folder: Path, verdict: Verdict) -> Outcome:
    version = folder.name
    if version == active:
        return Outcome(None, False, "nothing was learned")
    registry.publish(folder)
    reason = verdict.reason
    is_accepted = verdict.is_accepted
    if is_accepted and registry.journal().active != active:
        is_accepted, reason = False, "another version began to serve while it was trained"
    if is_accepted:
        registry.activate(version, by="trainer", reason=reason)
    else:
        figures = {f"{c.platform} {c.measure}": dataclasses.asdict(c) for c in verdict.comparisons}
        registry.mark(version, "rejected", reason, figures)
    log.info("version %s is %s: %s", version, "accepted" if is_accepted else "rejected", reason)
    return Outcome(version, is_accepted, reason)


class _Step:
    """The networks of a version on their way to the next one.

    Parameters
    ----------
    folder : Path
        Of the version that serves.
    store, settings, newest
        See `learn`.
    """

    def __init__(self, folder: Path, store: RecordStore, settings: FitSettings, newest: int) -> None:
        self._folder = folder
        self._store = store
        self._settings = settings
        self._newest = newest
        self._before = read_manifest(folder)
        self._report = ImportReport()
        self._sets: dict[PlatformKind, tuple[TrainingSet, TrainingSet]] = {}
        self._networks: list[Network] = []
        self.files: dict[str, Path] = {}

    @property
    def _preset(self) -> Preset:
        return PRESETS[self._before.model]

    def prepare(self) -> str | None:
        """Read the records, and return what keeps this step from being made, if anything does."""
        if self._before.model != "base":
            return f"{self._before.version} is no 'base', which alone learns"
        known = {n.platform_kind: n for n in self._before.networks}
        encoders = {kind: self._preset.encoder(kind, network) for kind, network in known.items()}
        records = valid_records(
            stored_records(self._store, newest=self._newest), self._report, with_failed=True
        )
        try:
            sets = build_sets(records, encoders, self._report)
        except BadRecords as error:  # more platforms than a network tells apart
            return str(error)
        for kind, whole in sets.items():
            learned, held = _divided(whole, self._store.seed)
            if learned.tasks and held.tasks:
                self._sets[kind] = (learned, held)
        return None if self._sets else "too few records of any task to learn from some and hold others back"

    def train(self, folder: Path) -> None:
        """Train the networks of the kinds that there are records of; the others stay as they are."""
        folder.mkdir()
        for network in self._before.networks:
            kind = network.platform_kind
            if kind not in self._sets:
                self._networks.append(keep(network, self._folder, folder))
                continue
            learned, _ = self._sets[kind]
            nothing = dataclasses.replace(learned, tasks=())
            source = (network, self._folder / network.file)
            training = KindTraining(kind, self._preset, self._settings, learned, nothing, nothing, source)
            self._networks += training.run(folder)
        self.files = {name: folder / name for network in self._networks for name in network.files}

    def held_back(self) -> list[HeldBack]:
        """Return the held-back candidates, scored by both versions."""
        found = []
        for before, after in zip(self._before.networks, self._networks, strict=True):
            if before.platform_kind not in self._sets:
                continue
            learned, held = self._sets[before.platform_kind]
            serving = self._preset.network(
                _known_to(before, learned), self._settings, (before, self._folder / before.file)
            )
            candidate = self._preset.network(learned, self._settings, (after, self.files[after.file]))
            # A platform that the serving version does not know is any platform to it.
            table = held.table.copy()
            table[:, base.platform_column(len(before.platforms)) :] = 0
            for task in held.tasks:
                found.append(_scored(task, serving, table, candidate, held.table))
        return found

    def manifest(self, verdict: Verdict) -> Manifest:
        """Return the manifest of the version that was made."""
        gate = {c.platform: c.candidate for c in verdict.comparisons if c.measure == "pair_accuracy"}
        training = {
            "from": self._before.version,
            "records": dict(self._report.counts),
            "settings": dataclasses.asdict(self._settings),
            "gate": gate,
            "verdict": verdict.reason,
        }
        return Manifest.of_now(self._before.model, self._networks, training)


def _known_to(network: Network, learned: TrainingSet) -> TrainingSet:
    """Return the set as that of the platforms that a network knows: those that follow are not made room for."""
    return dataclasses.replace(learned, numbered=tuple(network.platforms))


def _scored(
    task: TrainingTask,
    serving: AnyNetwork,
    known: npt.NDArray[np.float32],
    candidate: AnyNetwork,
    table: npt.NDArray[np.float32],
) -> HeldBack:
    scores = predict_task(serving.eval(), known, task), predict_task(candidate.eval(), table, task)
    return HeldBack(task.platform, task.workload, task.costs, *scores)


def _divided(whole: TrainingSet, seed: int) -> tuple[TrainingSet, TrainingSet]:
    """Return what is learned from and what is held back: all of the test part's tasks, and one in five candidates of the others."""
    learned: list[TrainingTask] = []
    held: list[TrainingTask] = []
    for task in whole.tasks:
        is_held = np.ones(len(task.costs), dtype=bool)
        if part_of(task.workload, seed) != "test":
            is_held = np.array([_digest(values) % _HELD_BACK == 0 for values in task.values])
        for found, rows, failed in ((learned, ~is_held, task.failed), (held, is_held, task.failed[:0])):
            if rows.sum() > 1:
                found.append(dataclasses.replace(task.some(np.flatnonzero(rows)), failed=failed))
    return dataclasses.replace(whole, tasks=tuple(learned)), dataclasses.replace(whole, tasks=tuple(held))


def _digest(values: npt.NDArray[np.float16]) -> int:
    # Of what the network reads: candidates that are alike to it are on one side.
    return int.from_bytes(hashlib.blake2b(values.tobytes(), digest_size=8).digest(), "big")
