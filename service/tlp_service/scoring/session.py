"""A network on ONNX Runtime, on the provider that was asked for and on no other."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnxruntime

from tlp_service.errors import BadSettings, BadVersion
from tlp_service.scoring.plan import blocks, plan_runs

Device = Literal["cpu", "cuda"]

_PROVIDERS: dict[Device, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")

#: Candidates a run. A CPU is fastest while a chunk's activations stay in its cache, a GPU with large chunks.
_CHUNKS: dict[Device, int] = {"cpu": 32, "cuda": 2048}


class RawScorer:
    """Runs one network of a version.

    Parameters
    ----------
    path : Path
        The ONNX file, of the form of `tlp_service.models.published.DistinctForm`.
    steps : int
        Rows that the network reads of a candidate.
    device : {"cpu", "cuda"}
        Where it must run.
    threads : int
        Intra-op threads; 0 for the CPUs that this process may use.

    Raises
    ------
    BadSettings
        If the provider of `device` cannot be had. ONNX Runtime itself would only log that and use the CPU.
    BadVersion
        If the file is not a network that ONNX Runtime can load.
    """

    def __init__(self, path: Path, steps: int, device: Device, threads: int = 0) -> None:
        wanted = _PROVIDERS[device]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or usable_cpus()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Spinning threads would burn a core while the server is idle.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if wanted not in onnxruntime.get_available_providers():
            raise BadSettings(
                f"TLP_DEVICE={device}: this onnxruntime has no {wanted} (install onnxruntime-gpu)"
            )
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=[wanted])
        except Exception as error:  # noqa: BLE001  onnxruntime's exceptions have no common base
            raise BadVersion(f"{path}: onnxruntime cannot load it: {error}") from None
        # A provider that is listed may still fail to start, which falls back without an error.
        self.provider = str(self._session.get_providers()[0])
        if self.provider != wanted:
            raise BadSettings(f"TLP_DEVICE={device}: onnxruntime runs the network on {self.provider} instead")
        self._steps = steps
        self._chunk = _CHUNKS[device]
        shapes = {value.name: value.shape for value in self._session.get_inputs()}
        if set(shapes) != {"rows", "known", "positions", "counts"}:
            raise BadVersion(f"{path}: its inputs are {', '.join(shapes)}: not a network of this form")
        self._no_rows = np.empty((0, shapes["rows"][1]), dtype=np.float32)
        self._no_known = np.empty((0, shapes["known"][1]), dtype=np.float32)

    def run(
        self,
        table: npt.NDArray[np.float32],
        indices: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        proceed: Callable[[], None] = lambda: None,
    ) -> npt.NDArray[np.float32]:
        """Return raw scores, shape (candidates,).

        Parameters
        ----------
        table : ndarray, shape (1 + primitives, row width)
            The padding row, then the distinct rows.
        indices : ndarray of int, shape (sum of lengths,)
            Primitives of all candidates, one candidate after the other.
        lengths : ndarray of int, shape (candidates,)
            Primitives of each candidate.
        proceed : callable
            Called between runs; what it raises ends the scoring.
        """
        scores = np.empty(len(lengths), dtype=np.float32)
        for block in blocks(plan_runs(indices, lengths, self._steps, self._chunk), len(table)):
            known = self._encode(table[block.rows])
            for run in block.runs:
                proceed()
                feeds = {
                    "rows": self._no_rows,
                    "known": known,
                    "positions": block.place_of[run.positions],
                    "counts": run.counts,
                }
                (scores[run.candidates],) = self._session.run(["raw_scores"], feeds)
        return scores

    def _encode(self, table: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        feeds = {
            "rows": table,
            "known": self._no_known,
            "positions": np.empty((0, 1), dtype=np.int64),
            "counts": np.empty((0, 1), dtype=np.float32),
        }
        encoded: npt.NDArray[np.float32] = self._session.run(["encoded"], feeds)[0]
        return encoded


def usable_cpus() -> int:
    """Return how many CPUs this process may use, by its affinity and by the quota of its container (cgroup 2)."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CPU_QUOTA.read_text().split()
        return cpus if quota == "max" else max(1, min(cpus, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        return cpus
