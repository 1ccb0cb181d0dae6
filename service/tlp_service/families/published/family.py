"""The family `published`: computes the network inputs, rows of distinct primitives, of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tlp_client.wire.predict import PredictRequest
from tlp_service.families.family import Asked, Family
from tlp_service.families.published import MULTI_HEAD, NAME
from tlp_service.families.published.features import PUBLISHED
from tlp_service.families.published.plan import RowPlan
from tlp_service.inference.inputs import Inputs
from tlp_service.scheduling.steps import Steps
from tlp_service.versions.manifest import Network

if TYPE_CHECKING:
    from tlp_service.training.preset import Preset

#: Number of distinct rows of synthetic candidates.
_PROBE_ROWS = 256


class Published(Family):
    """Scores a candidate from its primitives, one row each."""

    name = NAME
    models = (NAME, MULTI_HEAD)

    def inputs_in_steps(self, asked: Sequence[Asked]) -> Steps[list[Inputs]]:
        """Compute one row per distinct primitive of a request."""
        found = []
        for one in asked:
            yield one.cost
            found.append((yield from _inputs_of(one.network, one.schedules)))
        return found

    def probe(self, network: Network, candidates: int) -> Inputs:
        """Return candidates of random primitives."""
        random = np.random.default_rng(0)
        lengths = random.integers(network.steps // 3, network.steps, candidates)
        plan = RowPlan.of(random.integers(0, _PROBE_ROWS, int(lengths.sum())), lengths, network.steps)
        return Inputs(np.ones((1 + _PROBE_ROWS, network.row_width), dtype=np.float32), plan)

    def empty(self, network: Network) -> Inputs:
        """Return two candidates that consist of padding only."""
        nothing, none = np.zeros(2, dtype=np.int64), np.empty(0, dtype=np.int64)
        table = np.zeros((1, network.row_width), dtype=np.float32)
        return Inputs(table, RowPlan.of(none, nothing, network.steps))

    def check(self, network: Network, row_width: int, value_width: int | None) -> None:
        """Check the rows of a candidate and their width."""
        features = PUBLISHED[network.platform_kind]
        self.check_sizes(network, (network.steps, row_width), (features.steps, features.width))

    def preset(self, model: str) -> Preset:
        """Return the preset of the network with one head, or with a head per platform."""
        from tlp_service.families.published.preset import PRESETS

        return PRESETS[model]


def _inputs_of(network: Network, request: PredictRequest) -> Steps[Inputs]:
    features = PUBLISHED[network.platform_kind]
    table, broken = yield from features.rows_in_steps(request.primitives)
    table, indices = _without_unused(table, request.indices)
    return Inputs(
        table,
        RowPlan.of(indices, request.lengths, features.steps),
        _candidates_with(broken, request),
        int(np.count_nonzero(request.lengths > network.steps)),
    )


def _without_unused(
    table: npt.NDArray[np.float32], indices: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Remove unused rows, because encoding each takes time; keep row 0, the padding."""
    is_used = np.zeros(len(table), dtype=bool)
    is_used[0] = True
    is_used[1 + indices] = True
    if is_used.all():
        return table, indices
    return table[is_used], (np.cumsum(is_used) - 1)[1 + indices] - 1


def _candidates_with(broken: Mapping[int, Exception], request: PredictRequest) -> dict[int, str]:
    """Return the errors of candidates that contain a primitive without a row, by position."""
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
