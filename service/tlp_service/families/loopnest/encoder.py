"""Training sets of `loopnest`: one row per task, and the nest of each candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tlp_client.primitives import Primitive
from tlp_service.errors import BadRecords
from tlp_service.families.loopnest import features
from tlp_service.families.loopnest.task import PLATFORMS, TASK_WIDTH, task_row
from tlp_service.training.encoder import Encoder, TaskName


class NestEncoder(Encoder):
    """Encodes one row per task, and the loop nest of each candidate as its values.

    Parameters
    ----------
    platforms : sequence of str
        Platforms with a number already, of the version that is trained on; others follow in order of their
        names.
    """

    def __init__(self, platforms: Sequence[str] = ()) -> None:
        self.platforms = tuple(platforms)
        self._primitives: Sequence[Primitive] = ()

    def begin(self, primitives: Sequence[Primitive], tasks: Sequence[TaskName]) -> None:
        """Compute one row per task."""
        self._primitives = primitives
        new = sorted({platform for platform, _ in tasks} - set(self.platforms))
        self.platforms += tuple(new)
        if len(self.platforms) > PLATFORMS:
            raise BadRecords(f"{len(self.platforms)} platforms are more than the {PLATFORMS} of one network")
        numbers: Mapping[str, int] = {platform: n for n, platform in enumerate(self.platforms)}
        rows = [task_row(workload, numbers[platform]) for platform, workload in tasks]
        self.table = np.stack(rows) if rows else np.empty((0, TASK_WIDTH), dtype=np.float32)

    def encode(
        self, task: int, indices: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float16]]:
        """Return the task's row for each candidate, and their nests."""
        used, local = np.unique(indices, return_inverse=True)
        nests = features.nests([self._primitives[n] for n in used], local, lengths)
        return np.full((len(lengths), 1), task, dtype=np.int32), nests
