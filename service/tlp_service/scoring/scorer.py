"""Scores predict requests with one model version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tlp_client.tasks import PlatformKind
from tlp_client.wire.predict import ScoreRequest
from tlp_service.errors import BadVersion, InvalidBody, ScoringFailed, UnknownName
from tlp_service.families.family import Asked, Family
from tlp_service.families.lookup import family_named
from tlp_service.inference.inputs import Inputs
from tlp_service.inference.network import Device, OnnxNetwork
from tlp_service.inference.work import ScoringWork
from tlp_service.scheduling.steps import Steps, finished
from tlp_service.versions.choice import choose_network
from tlp_service.versions.manifest import Manifest, Network, read_manifest


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of a request.

    Parameters
    ----------
    platform_kind : {"cpu", "gpu"}
        Kind of the network that scored.
    scores : ndarray of float64, shape (candidates,)
        Scores in (0, 1]; NaN for the candidates in `errors`.
    errors : dict
        Reason for each candidate without a score, by position.
    truncated : int
        Number of candidates longer than the network can read. Their last primitives were ignored.
    """

    platform_kind: PlatformKind
    scores: npt.NDArray[np.float64]
    errors: dict[int, str]
    truncated: int


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request whose candidates are ready to be scored.

    Parameters
    ----------
    scorer : Scorer
        Version that prepared the request and must finish it.
    network : Network
        Network of the version that scores the request.
    report_invalid : bool
        Whether an invalid candidate is reported individually instead of refusing the whole request.
    errors : dict
        Reason for each candidate that gets no score, by position.
    truncated : int
        Number of candidates longer than the network can read.
    candidates : ScoringWork
        The scoring work. It includes the candidates in `errors`, as if they were empty or had unknown rows.
    validity : ScoringWork or None
        The work that predicts the probability that each candidate runs; None if the request does not ask for
        it.
    """

    scorer: Scorer
    network: Network
    report_invalid: bool
    errors: dict[int, str]
    truncated: int
    candidates: ScoringWork
    validity: ScoringWork | None = None


class Scorer:
    """A loaded model version.

    Parameters
    ----------
    folder : Path
        Folder of the version.
    device : {"cpu", "cuda"}
        Device on which its networks run.
    threads : int
        Threads that share the work of one batch.

    Raises
    ------
    BadVersion
        If the version is missing, damaged, of another schema, or gives scores that are not finite.
    BadSettings
        If the device is not available.
    """

    def __init__(self, folder: Path, device: Device = "cpu", threads: int = 1) -> None:
        self.folder = folder
        self.device = device
        self.manifest: Manifest = read_manifest(folder)
        self._networks: dict[str, OnnxNetwork] = {}  # by file
        for network in self.manifest.networks:
            for file in network.files:
                self._networks[file] = _load(folder, network, file, device, threads)

    @property
    def provider(self) -> str:
        """Name of the execution provider of the networks, as ONNX Runtime reports it."""
        return next(iter(self._networks.values())).provider

    @property
    def mixes(self) -> bool:
        """Whether to batch candidates of several requests."""
        return next(iter(self._networks.values())).mixes

    def loaded(self, network: Network) -> OnnxNetwork:
        """Return the loaded form of a network of the version."""
        return self._networks[network.file]

    def prepare(self, request: ScoreRequest) -> PreparedRequest:
        """Choose the network of a request and make what it reads of its candidates.

        Raises
        ------
        UnknownName
            If the version does not know the platform.
        InvalidBody
            If a candidate is invalid and ``on_invalid`` is not ``report``, if neither platform nor target
            determines the network, or if the network does not support the dialect.
        """
        return finished(self.prepare_in_steps(request))

    def prepare_in_steps(self, request: ScoreRequest) -> Steps[PreparedRequest]:
        """Do what `prepare` does, in steps of bounded time."""
        asked = self._asked(request)
        (inputs,) = yield from _inputs_in_steps([asked])
        return self._prepared(asked, inputs)

    def prepare_all_in_steps(
        self, requests: Sequence[ScoreRequest]
    ) -> Steps[list[PreparedRequest | InvalidBody | UnknownName]]:
        """Do the same as `prepare` for many requests; the result of a refused one is its exception."""
        found: list[Asked | InvalidBody | UnknownName] = []
        for request in requests:
            try:
                found.append(self._asked(request))
            except (InvalidBody, UnknownName) as error:
                found.append(error)
        inputs = iter((yield from _inputs_in_steps([one for one in found if isinstance(one, Asked)])))
        return [self._prepared(one, next(inputs)) if isinstance(one, Asked) else one for one in found]

    def _asked(self, request: ScoreRequest) -> Asked:
        choice = choose_network(self.manifest, request.platform, request.target)
        family_named(choice.network.features).check_request(request)
        return Asked(choice.network, choice.platform, request)

    def _prepared(self, asked: Asked, inputs: Inputs) -> PreparedRequest:
        network, request = asked.network, asked.request
        errors = dict(request.errors)
        for position, error in inputs.errors.items():
            errors[position] = f"candidates[{position}]{error}"
        if errors and not request.report_invalid:
            raise InvalidBody(errors[min(errors)])
        candidates = ScoringWork(self.loaded(network), inputs.table, inputs.plan)
        validity = None
        if request.validity:
            if network.validity is None:
                raise InvalidBody(f"validity: version {self.manifest.version} does not tell it")
            validity = ScoringWork(self._networks[network.validity.file], inputs.table, inputs.plan)
        return PreparedRequest(
            self, network, request.report_invalid, errors, inputs.truncated, candidates, validity
        )

    def probabilities(
        self, prepared: PreparedRequest, log_odds: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float64]:
        """Return the probability that each candidate builds and runs; NaN for those in `errors`.

        `log_odds` is the result of `PreparedRequest.validity`.
        """
        chances: npt.NDArray[np.float64] = 1 / (1 + np.exp(-log_odds.astype(np.float64).clip(-50, 50)))
        chances[list(prepared.errors)] = np.nan
        return chances

    def finish(self, prepared: PreparedRequest, raw: npt.NDArray[np.float32]) -> Scored:
        """Return the served scores of prepared candidates.

        A candidate's score depends only on the candidate, up to rounding (1e-5). It depends neither on the
        other candidates of the request, nor on their order, nor on other requests.

        Parameters
        ----------
        raw : ndarray of float32, shape (candidates,)
            Raw scores of the candidates.

        Raises
        ------
        ScoringFailed
            If a score is not finite and ``on_invalid`` is not ``report``.
        """
        network, errors = prepared.network, dict(prepared.errors)
        scores = family_named(network.features).scores(network, raw)
        for position in np.flatnonzero(~np.isfinite(scores)).tolist():
            if position not in errors:
                errors[position] = (
                    f"candidates[{position}]: version {self.manifest.version} gives a score that is not finite"
                )
                if not prepared.report_invalid:
                    raise ScoringFailed(errors[position])
        scores[list(errors)] = np.nan
        return Scored(network.platform_kind, scores, errors, prepared.truncated)

    def score(self, request: ScoreRequest, chunk: int = 32) -> Scored:
        """Prepare, score and finish a request in this thread."""
        prepared = self.prepare(request)
        work = prepared.candidates
        return self.finish(prepared, work.network.score_all(work.table, work.plan, chunk))


def _inputs_in_steps(asked: Sequence[Asked]) -> Steps[list[Inputs]]:
    """Compute the inputs of many requests, grouped by family."""
    by_family: dict[Family, list[int]] = {}
    for place, one in enumerate(asked):
        by_family.setdefault(family_named(one.network.features), []).append(place)
    found: dict[int, Inputs] = {}
    for family, places in by_family.items():
        inputs = yield from family.inputs_in_steps([asked[place] for place in places])
        found.update(zip(places, inputs, strict=True))
    return [found[place] for place in range(len(asked))]


def _load(folder: Path, network: Network, file: str, device: Device, threads: int) -> OnnxNetwork:
    """Load one of the files of a network, check its inputs, and run it once."""
    loaded = OnnxNetwork(folder / file, device, threads)
    try:
        family = family_named(network.features)
        family.check(network, loaded.row_width, loaded.value_width)
        if loaded.row_width != network.row_width:
            raise BadVersion(
                f"{file}: expected rows of {network.row_width} numbers, as the manifest says, got {loaded.row_width}"
            )
    except BadVersion as error:
        raise BadVersion(f"{folder}: {error}") from None
    _warm_up(loaded, network, folder)
    return loaded


def _warm_up(loaded: OnnxNetwork, network: Network, folder: Path) -> None:
    """Run the network once on candidates without primitives, so that no request waits for the first run."""
    family = family_named(network.features)
    inputs = family.empty(network)
    scores = loaded.score_all(inputs.table, inputs.plan)
    if scores.shape != (2,) or not np.isfinite(family.scores(network, scores)).all():
        raise BadVersion(f"{folder}: the {network.platform_kind} network gives scores that are not finite")
