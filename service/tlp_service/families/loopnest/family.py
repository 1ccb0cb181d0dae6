"""The family `loopnest`: computes the network inputs, loop nests and task rows, of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from tlp_client.primitives import MAX_STEPS, Primitive, too_many_steps
from tlp_client.wire.predict import PredictRequest
from tlp_service.errors import BadVersion
from tlp_service.families.family import Asked, Family
from tlp_service.families.loopnest import EARLIER_NAMES, NAME, features
from tlp_service.families.loopnest.plan import NestPlan
from tlp_service.families.loopnest.task import PLATFORMS, TASK_WIDTH, task_row
from tlp_service.inference.inputs import Inputs
from tlp_service.scheduling.steps import Steps
from tlp_service.versions.manifest import Network

if TYPE_CHECKING:
    from tlp_service.training.preset import Preset

#: Nests of the candidates of a request, and error messages of candidates that have none.
_Nests: TypeAlias = tuple[npt.NDArray[np.float16], dict[int, str]]


class LoopNest(Family):
    """Scores a candidate from the loop nest that its schedule produces, and from the row of its task."""

    name = NAME
    earlier_names = EARLIER_NAMES
    models = (NAME,)

    def inputs_in_steps(self, asked: Sequence[Asked]) -> Steps[list[Inputs]]:
        """Compute the nests of all requests at once: many small ones take little longer than a large one."""
        nests = yield from _nests_of([one.schedules for one in asked])
        found = []
        for one, (of_request, errors) in zip(asked, nests, strict=True):
            yield one.cost
            number = None if one.platform is None else one.network.platforms.index(one.platform)
            found.append(
                Inputs(task_row(one.schedules.workload_key, number)[None], NestPlan(of_request), errors)
            )
        return found

    def probe(self, network: Network, candidates: int) -> Inputs:
        """Return candidates with random nests."""
        nests = np.random.default_rng(0).random((candidates, features.NEST_WIDTH)).astype(np.float16)
        return Inputs(np.ones((1, network.row_width), dtype=np.float32), NestPlan(nests))

    def empty(self, network: Network) -> Inputs:
        """Return the nests of two candidates without primitives."""
        none = np.empty(0, dtype=np.int64)
        nests = features.nests([], none, np.zeros(2, dtype=np.int64))
        return Inputs(np.zeros((1, network.row_width), dtype=np.float32), NestPlan(nests))

    def check(self, network: Network, row_width: int, value_width: int | None) -> None:
        """Check the widths of tasks and nests, and the number of platforms."""
        if len(network.platforms) > PLATFORMS:
            raise BadVersion(f"{network.file}: {len(network.platforms)} platforms, of {PLATFORMS}")
        self.check_sizes(network, (row_width, value_width or 0), (TASK_WIDTH, features.NEST_WIDTH))

    def preset(self, model: str) -> Preset:
        """Return the only preset."""
        from tlp_service.families.loopnest.preset import PRESET

        return PRESET


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
    nests = yield from features.nests_in_steps(primitives, np.concatenate(indices), np.concatenate(lengths))
    ends = np.cumsum([len(counts) for counts in lengths])
    return list(zip(np.split(nests, ends[:-1]), errors, strict=True))
