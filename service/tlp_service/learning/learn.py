"""One step of learning: from the serving version and the record store to a version that serves, or to one that is marked rejected.

Each platform learns in a network of its own, which begins as the one that scores it now. What is measured on one platform thus
changes no score of another, to the last bit, and each is judged by itself.
"""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tlp_client.tasks import PlatformKind
from tlp_service.errors import BadRecords, BadSettings, BadVersion
from tlp_service.families.lookup import preset_named
from tlp_service.learning.division import TOO_FEW, check_costs, divide
from tlp_service.learning.gate import HeldBack, Verdict, judge
from tlp_service.learning.outcome import Outcome, Refusal
from tlp_service.learning.rejected import VERDICT, delete_rejected, withdraw
from tlp_service.records.reader import stored_records
from tlp_service.records.store import RecordStore
from tlp_service.training.dataset import (
    ImportReport,
    TrainingSet,
    TrainingTask,
    build_sets,
    valid_records,
)
from tlp_service.training.fit import FitSettings, predict_task
from tlp_service.training.network import TrainableNetwork
from tlp_service.training.networks import KindTraining, with_kept
from tlp_service.training.preset import Preset
from tlp_service.versions.manifest import Manifest, Network, read_manifest, write_version
from tlp_service.versions.registry import Registry

log = logging.getLogger(__name__)

#: Records of a platform that are learned from, old and new, see `stored_records`: it bounds time and memory.
_MAX_RECORDS = 50_000


def learn(
    store: RecordStore,
    registry: Registry,
    platforms: Sequence[str] | None = None,
    settings: FitSettings | None = None,
    may_publish: Callable[[], bool] = lambda: True,
) -> Outcome:
    """Fine-tune the serving version on the record store, publish the result, and let it serve if the gate accepts it.

    The networks of all accepted platforms become one version. If the gate accepts none, a version with all of them is published and
    marked rejected, with its figures. A platform that cannot be learned does not affect the others.

    Parameters
    ----------
    store : RecordStore
        What was measured.
    registry : Registry
        Where versions are.
    platforms : sequence of str or None
        Those that learn; None for all of the store's.
    settings : FitSettings or None
        How to train; None for the model's own settings.
    may_publish : callable
        Called before publishing; returns False if another trainer has taken over meanwhile.
    """
    try:
        active, preset = _serving(registry)
    except Refusal as refusal:
        return Outcome(None, False, str(refusal), refusal.state)
    with registry.checkout(active) as folder, tempfile.TemporaryDirectory() as scratch:
        files = Path(scratch, "files")
        files.mkdir()
        report = ImportReport()
        step = _Step(folder, read_manifest(folder), preset, settings or preset.adapting_settings)
        try:
            made = step.learn_all(store, store.platforms if platforms is None else platforms, report, files)
        except Refusal as refusal:
            return Outcome(None, False, str(refusal), refusal.state)
        accepted = [found for found in made if found.verdict.is_accepted]
        written = step.write(accepted or made, made, report, files, Path(scratch, "version"))
        if not may_publish():
            return Outcome(None, False, "another trainer took over before this one had finished", "put off")
        return _publish(registry, active, written, made)


def _serving(registry: Registry) -> tuple[str, Preset]:
    """Return the serving version and the preset of its model, or raise `Refusal` if it cannot be fine-tuned here."""
    active = registry.journal().active
    if active is None:
        raise Refusal("put off", "no version serves")
    try:
        preset = preset_named(registry.manifest(active).model)
    except BadSettings as error:
        raise Refusal("put off", f"{active}: {error}") from None
    if not preset.learns:
        raise Refusal("put off", f"{active} is a version of '{preset.name}', which does not learn")
    return active, preset


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
    # The accepted ones come first: they are the reason why the version serves.
    ordered = sorted(made, key=lambda found: not found.verdict.is_accepted)
    reason = "; ".join(found.verdict.reason for found in ordered)
    is_accepted = ordered[0].verdict.is_accepted
    # The verdict compares with the version that served before. If another one serves by now, it does not count. Checked again after
    # publishing, which takes a while.
    if registry.journal().active != active or not _is_published(registry, active, folder):
        return Outcome(None, False, "another version began to serve during the training", "put off")
    if is_accepted:
        registry.activate(version, by="trainer", reason=reason)
    else:
        registry.mark(version, "rejected", reason, _figures(made))
        delete_rejected(registry)
    log.info("version %s is %s: %s", version, "accepted" if is_accepted else "rejected", reason)
    return Outcome(version, is_accepted, reason)


def _is_published(registry: Registry, active: str, folder: Path) -> bool:
    """Publish a version, and return whether the one that it was made from still serves; if not, it is deleted again."""
    registry.publish(folder)
    if registry.journal().active == active:
        return True
    withdraw(registry, folder.name)
    return False


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
    preset : Preset
        The model of that version.
    settings : FitSettings
        How to train.
    """

    def __init__(self, folder: Path, before: Manifest, preset: Preset, settings: FitSettings) -> None:
        self._folder = folder
        self._before = before
        self._preset = preset
        self._settings = settings

    def learn_all(
        self, store: RecordStore, platforms: Sequence[str], report: ImportReport, folder: Path
    ) -> list[_Learned]:
        """Learn each platform, see `learn`; raises the last `Refusal` if none can be learned, and logs them all otherwise."""
        made: list[_Learned] = []
        refusals: list[Refusal] = []
        for platform in platforms:
            try:
                made += self.learn(store, platform, report, folder)
            except Refusal as refusal:
                refusals.append(refusal)
        if not made:
            raise refusals[-1] if refusals else Refusal("refused", TOO_FEW)
        for one in refusals:
            log.info("not learned: %s", one)
        return made

    def learn(self, store: RecordStore, platform: str, report: ImportReport, folder: Path) -> list[_Learned]:
        """Train a platform's network of each kind that it has records of, and judge it; the files go into a folder.

        Raises
        ------
        Refusal
            If the records cannot be read or learned from, or training fails.
        OSError, BadVersion
            If the disk is full, or the serving version cannot be fine-tuned: no fault of the platform.
        """
        try:
            sets = self._read(store, platform, report)
            divided = {kind: divide(whole, store.seed) for kind, whole in sets.items()}
            divided = {kind: parts for kind, parts in divided.items() if all(part.tasks for part in parts)}
            if not divided:
                raise Refusal("refused", TOO_FEW)
            return [self._learn(kind, platform, *parts, folder) for kind, parts in divided.items()]
        except (Refusal, OSError, BadVersion):
            raise
        except Exception as error:
            log.exception("training on %s failed", platform)
            raise Refusal("failed", f"training on {platform} failed: {error}") from None

    def _read(
        self, store: RecordStore, platform: str, report: ImportReport
    ) -> dict[PlatformKind, TrainingSet]:
        """Return the records of a platform, of the kinds that the version has a network for."""
        try:
            stored = stored_records(store, [platform], _MAX_RECORDS)
            records = list(valid_records(stored, report, dialects=self._preset.dialects))
        except (OSError, BadRecords, pa.ArrowException) as error:
            raise Refusal("unreadable", f"the records of {platform} cannot be read: {error}") from None
        check_costs([record for _, record in records])
        encoders = {}
        for kind in (n.platform_kind for n in self._before.networks if n.serves is None):
            source = self._before.serving(kind, platform)
            assert source is not None, "at least the one of the kind"
            # The platform numbers of the network that training starts from, and one more for this platform.
            encoders[kind] = self._preset.encoder(kind, source.platforms)
        try:
            return build_sets(records, encoders, report)
        except BadRecords as error:
            reason = f"{error}: no platform number is left for {platform}; 'tlp train' can make a version of fewer platforms"
            raise Refusal("refused", reason) from None

    def _learn(
        self, kind: PlatformKind, platform: str, learned: TrainingSet, held: TrainingSet, folder: Path
    ) -> _Learned:
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
        table = held.table
        if serving.platforms_from is not None:
            table = table.copy()
            table[:, serving.platforms_from + len(before.platforms) :] = 0
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
            "gate": _mapping(self._before.training.get("gate")) | gate,
            VERDICT: {found.platform: found.verdict.reason for found in made},
        }
        return write_version(folder, Manifest.of_now(self._preset.name, networks, training), of_files)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _scored(
    task: TrainingTask,
    serving: TrainableNetwork,
    known: npt.NDArray[np.float32],
    candidate: TrainableNetwork,
    table: npt.NDArray[np.float32],
) -> HeldBack:
    scores = predict_task(serving.eval(), known, task), predict_task(candidate.eval(), table, task)
    return HeldBack(task.platform, task.workload, task.costs, *scores)
