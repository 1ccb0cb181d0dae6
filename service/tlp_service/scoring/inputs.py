"""What a network reads of a request: from primitives to a table of rows and a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tlp_client.tasks import target_names
from tlp_client.wire.predict import PredictRequest
from tlp_service.errors import BadVersion
from tlp_service.features import base
from tlp_service.features.published import PUBLISHED
from tlp_service.features.task import PLATFORMS, TASK_WIDTH, task_row
from tlp_service.scoring.network import OnnxNetwork
from tlp_service.scoring.plan import AnyPlan, NestPlan, Plan
from tlp_service.versions.manifest import Network


@dataclass(frozen=True, slots=True)
class Inputs:
    """The candidates of a request, as a network reads them.

    Parameters
    ----------
    table : ndarray of float32, shape (rows, row width)
        Rows that the plan refers to.
    plan : Plan or NestPlan
        What each candidate is.
    errors : dict
        Position of a candidate -> what is wrong, and where in it.
    truncated : int
        Candidates that the network does not read to their end.
    """

    table: npt.NDArray[np.float32]
    plan: AnyPlan
    errors: dict[int, str] = field(default_factory=dict)
    truncated: int = 0


def read_inputs(network: Network, request: PredictRequest) -> Inputs:
    """Return what a network of a version reads of a request."""
    return _base(network, request) if network.features == "base" else _published(network, request)


def probe_inputs(network: OnnxNetwork, candidates: int, rows: int = 256) -> Inputs:
    """Return candidates that are made up, to measure the speed of a network with."""
    random = np.random.default_rng(0)
    if network.nest_width:
        nests = random.random((candidates, network.nest_width)).astype(np.float16)
        return Inputs(np.ones((1, network.row_width), dtype=np.float32), NestPlan(nests))
    lengths = random.integers(network.steps // 3, network.steps, candidates)
    plan = Plan.of(random.integers(0, rows, int(lengths.sum())), lengths, network.steps)
    return Inputs(np.ones((1 + rows, network.row_width), dtype=np.float32), plan)


def empty_inputs(network: OnnxNetwork) -> Inputs:
    """Return two candidates without primitives, which are legal ones."""
    table = np.zeros((1, network.row_width), dtype=np.float32)
    nothing, none = np.zeros(2, dtype=np.int64), np.empty(0, dtype=np.int64)
    if network.nest_width:
        return Inputs(table, NestPlan(base.nests([], none, nothing)))
    return Inputs(table, Plan.of(none, nothing, network.steps))


def check_features(network: Network, loaded: OnnxNetwork) -> None:
    """Raise where a network does not read the features that its manifest names.

    Raises
    ------
    BadVersion
        If shapes differ.
    """
    if network.features == "base":
        expected = (TASK_WIDTH, base.NEST_WIDTH)
        actual = (loaded.row_width, loaded.nest_width)
        if len(network.platforms) > PLATFORMS:
            raise BadVersion(f"{network.file}: {len(network.platforms)} platforms, of {PLATFORMS}")
    else:
        features = PUBLISHED[network.platform_kind]
        expected = (features.steps, features.width)
        actual = (network.steps, network.row_width)
    if expected != actual or network.row_width != loaded.row_width:
        raise BadVersion(
            f"the {network.platform_kind} network reads {actual[0]} x {actual[1]} numbers, "
            f"its features '{network.features}' are {expected[0]} x {expected[1]}"
        )


def _base(network: Network, request: PredictRequest) -> Inputs:
    # As `choose_network` reads them: what is stated first, the target's names second.
    stated = (request.platform,) if request.platform is not None else target_names(request.target)
    if network.serves is not None:
        stated = (network.serves,)
    known = next((network.platforms.index(name) for name in stated if name in network.platforms), None)
    row = task_row(request.workload_key, known)
    too_long = request.lengths > base.MOST_STEPS
    errors = {
        position: f": {request.lengths[position]} primitives are more than the {base.MOST_STEPS} that a candidate may have"
        for position in np.flatnonzero(too_long).tolist()
    }
    indices, lengths = request.indices, request.lengths
    if errors:
        indices, lengths = indices[~np.repeat(too_long, lengths)], np.where(too_long, 0, lengths)
    return Inputs(row[None], NestPlan(base.nests(request.primitives, indices, lengths)), errors)


def _published(network: Network, request: PredictRequest) -> Inputs:
    features = PUBLISHED[network.platform_kind]
    table, broken = features.rows(request.primitives)
    table, indices = _without_unused(table, request.indices)
    return Inputs(
        table,
        Plan.of(indices, request.lengths, features.steps),
        _candidates_with(broken, request),
        int(np.count_nonzero(request.lengths > network.steps)),
    )


def _without_unused(
    table: npt.NDArray[np.float32], indices: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Leave out the rows that no candidate refers to, for each is work; row 0, the padding, stays."""
    is_used = np.zeros(len(table), dtype=bool)
    is_used[0] = True
    is_used[1 + indices] = True
    if is_used.all():
        return table, indices
    return table[is_used], (np.cumsum(is_used) - 1)[1 + indices] - 1


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
