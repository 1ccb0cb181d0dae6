"""Trains the networks of a platform kind and exports them as files of a version."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from tlp_client.tasks import PlatformKind
from tlp_service.ranking.ranking import Ranking, random_ranking
from tlp_service.training.dataset import TrainingSet, of_platforms
from tlp_service.training.export import export_onnx
from tlp_service.training.fit import Fit, FitSettings, fit, predict, rank_set, ranked_tasks
from tlp_service.training.form import Sample
from tlp_service.training.network import ExportableNetwork, TrainableNetwork
from tlp_service.training.preset import Exported, Preset
from tlp_service.training.validity import has_failures, validity_figures, validity_set
from tlp_service.versions.bounded_file import sha256_of
from tlp_service.versions.manifest import Manifest, Network, Validity

log = logging.getLogger(__name__)

#: Weight of the network's initial weights in `adapt`, as a number of tasks.
_KNOWN_TASKS = 3
#: candidates from which the score map is made, and by which the export is checked
SAMPLED, CHECKED = 4096, 2048


@dataclass(frozen=True, slots=True)
class KindTraining:
    """The training of the networks of a platform kind.

    Parameters
    ----------
    kind : {"cpu", "gpu"}
        The platform kind.
    preset : Preset
        The model to train.
    settings : FitSettings
        The settings for training.
    train, validation, test : TrainingSet
        Tasks to train on, to choose the best epoch by, and to compute the reported metrics on.
    source : (Network, Path) or None
        Network to start from, and its file.
    device : str
        Name of the torch device.
    checkpoint : Path or None
        Folder of the checkpoints.
    serves : str or None
        The one platform that the network is for.
    learns_validity : bool
        Whether it learns what fails, too; else what the source knows of that stays.
    """

    kind: PlatformKind
    preset: Preset
    settings: FitSettings
    train: TrainingSet
    validation: TrainingSet
    test: TrainingSet
    source: tuple[Network, Path] | None = None
    device: str = "cpu"
    checkpoint: Path | None = None
    serves: str | None = None
    learns_validity: bool = True

    @property
    def name(self) -> str:
        """What its files are called."""
        return self.kind if self.serves is None else f"{self.kind}-own-{self.serves}"

    def run(self, folder: Path) -> list[Network]:
        """Train, and write the files that the version gets of it."""
        network = self.preset.network(self.train, self.settings, self.source)
        train = fit if self.serves is None else adapt
        fitted = train(
            network,
            self.train,
            # A head that is not trained would only blur which epoch is best.
            of_platforms(self.validation, self.train.platforms),
            self.settings,
            self.device,
            self.name,
            self._progress(self.name),
        )
        exported = self.preset.exported(self.name, fitted.network.cpu(), self.train)
        networks = [self._export(one, fitted, folder) for one in exported]
        if self.learns_validity and self.preset.validity is not None and has_failures(self.train):
            assert len(networks) == 1, "no preset has both heads and validity"
            validity = self._train_validity(self.preset.validity, folder / f"{self.name}-validity.onnx")
            networks = [msgspec.structs.replace(networks[0], validity=validity)]
        elif self.source is not None and (known := self.source[0].validity) is not None:
            log.info("%s: what it knows of failures stays", self.name)
            kept = msgspec.structs.replace(known, file=f"{self.name}-validity.onnx")
            shutil.copyfile(self.source[1].parent / known.file, folder / kept.file)
            networks = [msgspec.structs.replace(networks[0], validity=kept)]
        return networks

    def _progress(self, name: str) -> Path | None:
        return self.checkpoint and self.checkpoint / f"{name}.safetensors"

    def _train_validity(self, preset: Preset, file: Path) -> Validity:
        """Train and export what tells how likely a candidate is to run."""
        train, test = validity_set(self.train), validity_set(self.test)
        epochs = min(self.settings.epochs, preset.settings.epochs)
        same = ("batch", "learning_rate", "seed")
        settings = dataclasses.replace(
            preset.settings, epochs=epochs, **{name: getattr(self.settings, name) for name in same}
        )
        source = None
        if self.source is not None and (known := self.source[0].validity) is not None:
            of_version = msgspec.structs.replace(self.source[0], architecture=known.architecture)
            source = (of_version, self.source[1].parent / known.file)
        name = f"{self.kind}-validity"
        network = preset.network(train, settings, source)
        # The last epoch is kept, since ranking a few held-out tasks best does not mean well-calibrated probabilities.
        nothing = dataclasses.replace(train, tasks=())
        fitted = fit(network, train, nothing, settings, self.device, name, self._progress(name))
        network = fitted.network.cpu()
        assert isinstance(network, ExportableNetwork), "made by the preset"
        figures = validity_figures(rank_set(network, test), test) if has_failures(test) else {}
        export_onnx(network, _sample(train, CHECKED), file)
        log.info("%s, what fails, unseen tasks: %s", self.kind, figures or "none with failed runs")
        return Validity(file.name, sha256_of(file), network.architecture, figures)

    def _export(self, exported: Exported, fitted: Fit, folder: Path) -> Network:
        """Write the file of a network, and return what the manifest says of it."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        split = {name: of_platforms(part, exported.platforms) for name, part in parts.items()}
        network, train_set, test = exported.network, split["train"], split["test"]
        file = folder / f"{exported.name}.onnx"
        metrics: dict[str, Any] = {"validation": dataclasses.asdict(fitted.validation)}
        if test.tasks:
            metrics["test"] = dataclasses.asdict(rank_set(network, test))
            metrics["test_random"] = dataclasses.asdict(
                random_ranking(task.costs for task in ranked_tasks(test))
            )
            _log_ranking(f"{exported.name}, unseen tasks, the model", metrics["test"])
            _log_ranking(f"{exported.name}, unseen tasks, random   ", metrics["test_random"])
        sample = _sample(train_set, SAMPLED)
        raw = predict(network, sample.table, sample.positions, sample.values)
        checked = Sample(sample.table, sample.positions[:CHECKED], sample.values[:CHECKED])
        difference = export_onnx(network, checked, file)
        log.info("%s: ONNX Runtime differs from torch by at most %.1e", exported.name, difference)
        steps, row_width = self.preset.shape(self.kind)
        return Network(
            platform_kind=self.kind,
            file=file.name,
            sha256=sha256_of(file),
            features=self.preset.features,
            steps=steps,
            row_width=row_width,
            platforms=list(exported.platforms),
            score_map=self.preset.score_map(raw),
            trained_on={
                name: {"tasks": len(part.tasks), "candidates": part.candidates}
                for name, part in split.items()
            }
            | {"epoch": fitted.epoch},
            metrics=metrics,
            architecture=network.architecture,
            serves=self.serves,
        )


def adapt(
    network: TrainableNetwork,
    train: TrainingSet,
    validation: TrainingSet,
    settings: FitSettings,
    device: str = "cpu",
    label: str = "",
    checkpoint: Path | None = None,
) -> Fit:
    """Fine-tune a network as `fit` does, and interpolate between its initial and its fine-tuned weights.

    A network that is fine-tuned on two tasks alone forgets the others (catastrophic forgetting). Networks between the
    initial and the fine-tuned weights perform nearly as well on both (Wortsman et al. 2022, arXiv 2109.01903).
    The share of the fine-tuned weights is n / (n + 3) for n tasks.
    """
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    fitted = fit(network, train, validation, settings, device, label, checkpoint)
    share = len(train.tasks) / (len(train.tasks) + _KNOWN_TASKS)
    mixed = {
        name: torch.lerp(before[name].to(after), after, share) if after.is_floating_point() else after
        for name, after in fitted.network.state_dict().items()
    }
    fitted.network.load_state_dict(mixed)
    return fitted


def keep(network: Network, source: Path, folder: Path) -> Network:
    """Copy the files of a network that stays as it is in the next version, and return it."""
    for name in network.files:
        shutil.copyfile(source / name, folder / name)
    return network


def with_kept(new: Sequence[Network], before: Manifest, source: Path, folder: Path) -> list[Network]:
    """Return the networks of a version with new ones in the place of those of the same platform; the others are kept.

    Parameters
    ----------
    before : Manifest
        Of the version.
    source, folder : Path
        Its folder, and the one that gets the files of what is kept.
    """

    def place(network: Network) -> tuple[PlatformKind, str | None]:
        return network.platform_kind, network.serves

    by_place = {place(n): n for n in new}
    before_of = {place(n) for n in before.networks}
    networks = [by_place.get(place(n)) or keep(n, source, folder) for n in before.networks]
    return networks + [n for n in new if place(n) not in before_of]


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
