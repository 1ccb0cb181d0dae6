"""One step of learning: from the serving version and the record store to a version that serves, or to one that is marked rejected.

Each platform learns in a network of its own, which begins as the one that scores it now. What is measured on one platform thus
changes no score of another, to the last bit, and each is judged by itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tlp_client.tasks import PlatformKind
from tlp_service.errors import BadRecords
from tlp_service.features.task import platform_column
from tlp_service.learning.gate import HeldBack, Verdict, judge
from tlp_service.records.reader import stored_records
from tlp_service.records.split import part_of
from tlp_service.records.store import RecordStore
from tlp_service.training.dataset import (
    ImportReport,
    TrainingSet,
    TrainingTask,
    build_sets,
    of_platforms,
    valid_records,
)
from tlp_service.training.fit import AnyNetwork, FitSettings, predict_task
from tlp_service.training.networks import KindTraining, with_kept
from tlp_service.training.presets import PRESETS, Preset
from tlp_service.versions.manifest import Manifest, Network, read_manifest, write_version
from tlp_service.versions.registry import Registry

log = logging.getLogger(__name__)

#: Candidates of a platform that are held back for the gate, of each task the same share, beside the tasks of the test part.
_HELD_BACK = 400
#: Least and largest share of its candidates.
_LEAST_HELD, _MOST_HELD = 0.2, 0.5
#: Records of a platform that are learned from, old and new, see `stored_records`: it bounds time and memory.
_MOST = 50_000
_SETTINGS = dataclasses.replace(PRESETS["base"].settings, **PRESETS["base"].adapting)


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
    platforms: Sequence[str] | None = None,
    settings: FitSettings = _SETTINGS,
    may_publish: Callable[[], bool] = lambda: True,
) -> Outcome:
    """Fine-tune the serving version on the record store, publish the result, and let it serve if the gate accepts it.

    What the gate accepts of the platforms becomes one version. If it accepts none, a version of all is published, and marked rejected with
    its figures.

    Parameters
    ----------
    store : RecordStore
        What was measured.
    registry : Registry
        Where versions are.
    platforms : sequence of str or None
        Those that learn; None for all of the store's.
    settings : FitSettings
        How to train.
    may_publish : callable
        Asked before anything is published: what took too long may be another's turn by now.
    """
    active = registry.journal().active
    if active is None:
        return Outcome(None, False, "no version serves")
    with registry.checkout(active) as folder, tempfile.TemporaryDirectory() as scratch:
        before = read_manifest(folder)
        if before.model != "base":
            return Outcome(None, False, f"{active} is no 'base', which alone learns")
        files = Path(scratch, "files")
        files.mkdir()
        step = _Step(folder, before, settings)
        report = ImportReport()
        try:
            sets = step.read(store, store.platforms if platforms is None else platforms, report)
        except BadRecords as error:  # more platforms than a network tells apart
            return Outcome(None, False, str(error))
        learned = [
            step.learn(kind, platform, whole, store.seed, files)
            for kind, whole in sets.items()
            for platform in whole.platforms
        ]
        made = [found for found in learned if found is not None]
        if not made:
            fault = "too few records of any task to learn from some and hold others back"
            return Outcome(None, False, fault)
        accepted = [found for found in made if found.verdict.is_accepted]
        written = step.write(accepted or made, made, report, files, Path(scratch, "version"))
        if not may_publish():
            return Outcome(None, False, "another trainer's turn came before this one was done")
        return _publish(registry, active, written, made)


@dataclass(frozen=True, slots=True)
class _Learned:
    """A platform's network, and what the gate says of it."""

    platform: str
    network: Network
    verdict: Verdict


def _publish(registry: Registry, active: str, folder: Path, made: Sequence[_Learned]) -> Outcome:
    version = folder.name
    if version == active:
        return Outcome(None, False, "nothing was learned")
    registry.publish(folder)
    # What was accepted is told first: it is why the version serves.
    told = sorted(made, key=lambda found: not found.verdict.is_accepted)
    reason = "; ".join(found.verdict.reason for found in told)
    is_accepted = told[0].verdict.is_accepted
    if is_accepted and registry.journal().active != active:
        is_accepted, reason = False, "another version began to serve while it was trained"
    if is_accepted:
        registry.activate(version, by="trainer", reason=reason)
    else:
        registry.mark(version, "rejected", reason, _figures(made))
    log.info("version %s is %s: %s", version, "accepted" if is_accepted else "rejected", reason)
    return Outcome(version, is_accepted, reason)


def _figures(learned: Sequence[_Learned]) -> dict[str, Any]:
    return {
        f"{c.platform} {c.measure}": dataclasses.asdict(c)
        for found in learned
        for c in found.verdict.comparisons
    }


class _Step:
    """What a step begins with.

    Parameters
    ----------
    folder : Path
        Of the version that serves.
    before : Manifest
        Of that version.
    settings : FitSettings
        How to train.
    """

    def __init__(self, folder: Path, before: Manifest, settings: FitSettings) -> None:
        self._folder = folder
        self._before = before
        self._settings = settings
        self._preset: Preset = PRESETS[before.model]

    def read(
        self, store: RecordStore, platforms: Sequence[str], report: ImportReport
    ) -> dict[PlatformKind, TrainingSet]:
        """Return the records of platforms, of the kinds that the version has a network for.

        Raises
        ------
        BadRecords
            If there are more platforms than a network tells apart.
        """
        kinds = [n.platform_kind for n in self._before.networks if n.serves is None]
        encoders = {kind: self._preset.encoder(kind, self._before.numbered(kind)) for kind in kinds}
        records = valid_records(stored_records(store, platforms, _MOST), report)
        return build_sets(records, encoders, report)

    def learn(
        self, kind: PlatformKind, platform: str, whole: TrainingSet, seed: int, folder: Path
    ) -> _Learned | None:
        """Train a platform's network and judge it, or return None where too little was measured; its files go into a folder."""
        learned, held = _divided(of_platforms(whole, {platform}), seed)
        if not learned.tasks or not held.tasks:
            return None
        source = self._before.serving(kind, platform)
        assert source is not None, "of other kinds nothing is read"
        nothing = dataclasses.replace(learned, tasks=())
        (network,) = KindTraining(
            kind,
            self._preset,
            self._settings,
            learned,
            nothing,
            nothing,
            (source, self._folder / source.file),
            serves=platform,
            learns_validity=False,  # nothing would judge it
        ).run(folder)
        return _Learned(platform, network, judge(self._compared(source, network, held, folder)))

    def _compared(self, before: Network, after: Network, held: TrainingSet, folder: Path) -> list[HeldBack]:
        """Return the held-back candidates of a platform, scored by the serving network and the new one."""
        # A platform that the serving network does not know is any platform to it, and nothing that its network need learn here.
        known = dataclasses.replace(held, tasks=(), numbered=tuple(before.platforms))
        serving = self._preset.network(known, self._settings, (before, self._folder / before.file))
        candidate = self._preset.network(
            dataclasses.replace(held, tasks=()), self._settings, (after, folder / after.file)
        )
        table = held.table.copy()
        table[:, platform_column(len(before.platforms)) :] = 0
        return [_scored(task, serving, table, candidate, held.table) for task in held.tasks]

    def write(
        self,
        used: Sequence[_Learned],
        made: Sequence[_Learned],
        report: ImportReport,
        files: Path,
        folder: Path,
    ) -> Path:
        """Write the version that serves with some networks in place of those that scored their platforms, and return its folder."""
        networks = with_kept([found.network for found in used], self._before, self._folder, files)
        of_files = {name: files / name for network in networks for name in network.files}
        gate = {
            c.platform: c.candidate
            for found in used
            for c in found.verdict.comparisons
            if c.measure == "pair_accuracy"
        }
        training = {
            "from": self._before.version,
            "records": dict(report.counts),
            "settings": dataclasses.asdict(self._settings),
            # Of the other platforms those of earlier steps hold: their networks are the same.
            "gate": self._before.training.get("gate", {}) | gate,
            "verdict": {found.platform: found.verdict.reason for found in made},
        }
        return write_version(folder, Manifest.of_now(self._before.model, networks, training), of_files)


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
    """Return what is learned from and what is held back: all of the test part's tasks, and some candidates of each of the others.

    Of few candidates half are held back: what is learned from the others is little, and only many can show that it is better.
    """
    share = min(_MOST_HELD, max(_LEAST_HELD, _HELD_BACK / max(1, whole.candidates)))
    learned: list[TrainingTask] = []
    held: list[TrainingTask] = []
    for task in whole.tasks:
        is_held = np.ones(len(task.costs), dtype=bool)
        if part_of(task.workload, seed) != "test":
            is_held = np.array([_digest(values) < share for values in task.values])
        for found, rows, failed in ((learned, ~is_held, task.failed), (held, is_held, task.failed[:0])):
            if rows.sum() > 1:
                found.append(dataclasses.replace(task.some(np.flatnonzero(rows)), failed=failed))
    return dataclasses.replace(whole, tasks=tuple(learned)), dataclasses.replace(whole, tasks=tuple(held))


def _digest(values: npt.NDArray[np.float16]) -> float:
    """Return a number in [0, 1) that is drawn by what the network reads: candidates that are alike to it are on one side."""
    return int.from_bytes(hashlib.blake2b(values.tobytes(), digest_size=8).digest(), "big") / 2**64
