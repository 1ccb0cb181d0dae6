"""Training sets of `published`: one row per distinct primitive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tlp_client.primitives import Primitive
from tlp_service.families.published.features import PublishedFeatures
from tlp_service.training.encoder import Encoder, TaskName


class PublishedEncoder(Encoder):
    """Encodes candidates as rows of the published features, without further values."""

    def __init__(self, features: PublishedFeatures) -> None:
        self._features = features

    def begin(self, primitives: Sequence[Primitive], tasks: Sequence[TaskName]) -> None:
        """Compute one row per primitive."""
        self.table, errors = self._features.rows(primitives)
        self.broken = frozenset(errors)

    def encode(
        self, task: int, indices: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float16]]:
        """Return the row at each step."""
        positions = self._features.positions(indices, lengths).astype(np.int32)
        return positions, np.empty((len(lengths), 0), dtype=np.float16)


class HeadEncoder(PublishedEncoder):
    """Encodes candidates as published rows, with the number of the platform's head as their value."""

    def begin(self, primitives: Sequence[Primitive], tasks: Sequence[TaskName]) -> None:
        """Compute one row per primitive, and number the platforms."""
        super().begin(primitives, tasks)
        self.platforms = tuple(sorted({platform for platform, _ in tasks}))
        self._heads = [self.platforms.index(platform) for platform, _ in tasks]

    def encode(
        self, task: int, indices: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float16]]:
        """Return the row at each step, and the number of the head."""
        positions, _ = super().encode(task, indices, lengths)
        return positions, np.full((len(lengths), 1), self._heads[task], dtype=np.float16)
