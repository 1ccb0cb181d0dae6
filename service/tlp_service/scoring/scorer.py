"""Scores predict requests with one model version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tlp_client.tasks import PlatformKind
from tlp_client.wire.predict import PredictRequest
from tlp_service.errors import BadVersion, InvalidBody, ScoringFailed
from tlp_service.features.published import PUBLISHED
from tlp_service.scoring.score_map import map_scores
from tlp_service.scoring.session import Device, RawScorer
from tlp_service.versions.manifest import Manifest, Network, read_manifest
from tlp_service.versions.platforms import choose_network


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of a request.

    Parameters
    ----------
    platform_kind : {"cpu", "gpu"}
        Network that scored.
    scores : ndarray of float64, shape (candidates,)
        In (0, 1]; NaN for the candidates in `errors`.
    errors : dict
        Position of a candidate -> why it has no score.
    truncated : int
        Candidates longer than the network reads; their last primitives did not count.
    """

    platform_kind: PlatformKind
    scores: npt.NDArray[np.float64]
    errors: dict[int, str]
    truncated: int


class Scorer:
    """A loaded model version.

    Parameters
    ----------
    folder : Path
        Folder of the version.
    device : {"cpu", "cuda"}
        Where its networks run.
    threads : int
        Threads of ONNX Runtime, 0 for the usable CPUs.

    Raises
    ------
    BadVersion
        If the version is missing, damaged, of another schema, or gives scores that are not finite.
    BadSettings
        If the device cannot be had.
    """

    def __init__(self, folder: Path, device: Device = "cpu", threads: int = 0) -> None:
        self.manifest: Manifest = read_manifest(folder)
        self._raw: dict[PlatformKind, RawScorer] = {}
        for network in self.manifest.networks:
            features = PUBLISHED[network.platform_kind]
            if (network.steps, network.row_width) != (features.steps, features.width):
                raise BadVersion(
                    f"{folder}: the {network.platform_kind} network reads {network.steps} x {network.row_width} "
                    f"rows, the features are {features.steps} x {features.width}"
                )
            raw = RawScorer(folder / network.file, network.steps, device, threads)
            _warm_up(raw, network, folder)
            self._raw[network.platform_kind] = raw

    @property
    def provider(self) -> str:
        """Execution provider that runs the networks, as ONNX Runtime reports it."""
        return next(iter(self._raw.values())).provider

    def score(self, request: PredictRequest, proceed: Callable[[], None] = lambda: None) -> Scored:
        """Score the candidates of a request.

        A candidate's score is that of the network alone, within rounding (1e-5): it depends neither on the others of the
        request nor on their order.

        Parameters
        ----------
        request : PredictRequest
            What to score.
        proceed : callable
            Called between runs; what it raises ends the scoring.

        Raises
        ------
        UnknownName
            If the version does not know the platform.
        InvalidBody
            If a candidate is invalid and the request does not ask for errors by candidate, or if
            neither platform nor target decides the network.
        ScoringFailed
            If a score is not finite and the request does not ask for errors by candidate.
        """
        network = choose_network(self.manifest, request.platform, request.target)
        features = PUBLISHED[network.platform_kind]
        table, broken = features.rows(request.primitives)
        errors = dict(request.errors)
        for position, error in _candidates_with(broken, request).items():
            errors[position] = f"candidates[{position}]{error}"
        if errors and not request.report_invalid:
            raise InvalidBody(errors[min(errors)])
        raw = self._raw[network.platform_kind].run(table, request.indices, request.lengths, proceed)
        scores = map_scores(raw, network.score_map)
        for position in np.flatnonzero(~np.isfinite(scores)).tolist():
            if position not in errors:
                errors[position] = (
                    f"candidates[{position}]: version {self.manifest.version} gives a score that is not finite"
                )
                if not request.report_invalid:
                    raise ScoringFailed(errors[position])
        scores[list(errors)] = np.nan
        truncated = int(np.count_nonzero(request.lengths > features.steps))
        return Scored(network.platform_kind, scores, errors, truncated)


def _candidates_with(broken: Mapping[int, Exception], request: PredictRequest) -> dict[int, str]:
    """Return candidate -> error, for each candidate that holds a primitive without a row."""
    if not broken:
        return {}
    found: dict[int, str] = {}
    starts = np.cumsum(request.lengths) - request.lengths
    for place in np.flatnonzero(np.isin(request.indices, list(broken))).tolist():
        candidate = int(np.searchsorted(starts, place, side="right")) - 1
        if candidate not in found:
            step = place - int(starts[candidate])
            found[candidate] = f", primitive {step}: {broken[int(request.indices[place])]}"
    return found


def _warm_up(raw: RawScorer, network: Network, folder: Path) -> None:
    """Run the network once before anybody waits for it; a candidate without primitives is a legal one."""
    table = np.zeros((1, network.row_width), dtype=np.float32)
    scores = raw.run(table, np.empty(0, dtype=np.int64), np.zeros(2, dtype=np.int64))
    if scores.shape != (2,) or not np.isfinite(map_scores(scores, network.score_map)).all():
        raise BadVersion(f"{folder}: the {network.platform_kind} network gives scores that are not finite")
