"""What a network reads of a request: from primitives to a table of rows and a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tlp_client.primitives import MAX_STEPS, Primitive, too_many_steps
from tlp_client.tasks import target_names
from tlp_client.wire.predict import PredictRequest
from tlp_service.engine.network import OnnxNetwork
from tlp_service.engine.plan import AnyPlan, NestPlan, Plan
from tlp_service.errors import BadVersion
from tlp_service.families.loopnest import features as loopnest_features
from tlp_service.families.loopnest.task import PLATFORMS, TASK_WIDTH, task_row
from tlp_service.families.published.features import PUBLISHED
from tlp_service.scheduling.steps import Steps
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


#: A request, and the network that scores it.
Asked: TypeAlias = tuple[Network, PredictRequest]

#: Units of work (see `tlp_service.scheduling.steps`) per task, and per character of its workload key.
_TASK_COST, _KEY_COST = 3_000, 4


def inputs_in_steps(asked: Sequence[Asked]) -> Steps[list[Inputs]]:
    """Compute the inputs of networks from requests, in steps of bounded time.

    What depends only on candidates is computed for all requests at once, so many small requests take little longer than
    one large request.
    """
    of_base = [request for network, request in asked if network.features == "base"]
    nests = iter((yield from _nests_of(of_base)))
    found = []
    for network, request in asked:
        yield _TASK_COST + _KEY_COST * len(request.workload_key)
        if network.features == "base":
            found.append(_base(network, request, *next(nests)))
        else:
            found.append((yield from _published(network, request)))
    return found


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
        return Inputs(table, NestPlan(loopnest_features.nests([], none, nothing)))
    return Inputs(table, Plan.of(none, nothing, network.steps))


def check_features(network: Network, loaded: OnnxNetwork) -> None:
    """Raise where a network does not read the features that its manifest names.

    Raises
    ------
    BadVersion
        If shapes differ.
    """
    if network.features == "base":
        expected = (TASK_WIDTH, loopnest_features.NEST_WIDTH)
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


#: Nests of the candidates of a request, and error messages of candidates that have none.
_Nests: TypeAlias = tuple[npt.NDArray[np.float16], dict[int, str]]


def _nests_of(requests: Sequence[PredictRequest]) -> Steps[list[_Nests]]:
    """Return the nests of each request, computed for all requests at once."""
    if not requests:
        return []
    known: dict[Primitive, int] = {}
    indices, lengths, errors = [], [], []
    for request in requests:
        too_long = request.lengths > MAX_STEPS
        found, counts = request.indices, request.lengths
        if too_long.any():
            found, counts = found[~np.repeat(too_long, counts)], np.where(too_long, 0, counts)
        if len(requests) > 1:
            numbers = [known.setdefault(primitive, len(known)) for primitive in request.primitives]
            found = np.array([*numbers, 0], dtype=np.int64)[found]
        indices.append(found)
        lengths.append(counts)
        errors.append(
            {
                position: f": {too_many_steps(int(request.lengths[position]))}"
                for position in np.flatnonzero(too_long).tolist()
            }
        )
    primitives = list(known) if len(requests) > 1 else requests[0].primitives
    nests = yield from loopnest_features.nests_in_steps(
        primitives, np.concatenate(indices), np.concatenate(lengths)
    )
    ends = np.cumsum([len(counts) for counts in lengths])
    return list(zip(np.split(nests, ends[:-1]), errors, strict=True))


def _base(
    network: Network, request: PredictRequest, nests: npt.NDArray[np.float16], errors: dict[int, str]
) -> Inputs:
    # As `choose_network` reads them: what is stated first, the target's names second.
    stated = (request.platform,) if request.platform is not None else target_names(request.target)
    if network.serves is not None:
        stated = (network.serves,)
    known = next((network.platforms.index(name) for name in stated if name in network.platforms), None)
    return Inputs(task_row(request.workload_key, known)[None], NestPlan(nests), errors)


def _published(network: Network, request: PredictRequest) -> Steps[Inputs]:
    features = PUBLISHED[network.platform_kind]
    table, broken = yield from features.rows_in_steps(request.primitives)
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
    starts = np.cumsum(request.lengths) - request.lengths
    places = np.flatnonzero(np.isin(request.indices, list(broken)))
    # A candidate without primitives begins where the next one does; the search finds the next one.
    of_places = np.searchsorted(starts, places, side="right") - 1
    candidates, firsts = np.unique(of_places, return_index=True)
    steps = places[firsts] - starts[candidates]
    return {
        candidate: f", primitive {step}: {broken[index]}"
        for candidate, step, index in zip(
            candidates.tolist(), steps.tolist(), request.indices[places[firsts]].tolist(), strict=True
        )
    }
