"""An ONNX Runtime session on the provider that was asked for, and on no other."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnxruntime

from tlp_service.errors import BadSettings, BadVersion

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
        The ONNX file: input (candidates, steps, row width), output (candidates,).
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

    def __init__(self, path: Path, device: Device, threads: int = 0) -> None:
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
        self._chunk = _CHUNKS[device]
        self._input = self._session.get_inputs()[0].name

    def run(
        self, table: npt.NDArray[np.float32], positions: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """Return raw scores, shape (candidates,).

        Parameters
        ----------
        table : ndarray, shape (rows, row width)
            Distinct rows.
        positions : ndarray of int, shape (candidates, steps)
            Which row stands at each step.
        """
        chunks = [
            self._session.run(None, {self._input: table[positions[start : start + self._chunk]]})[0]
            for start in range(0, len(positions), self._chunk)
        ]
        return np.concatenate(chunks) if chunks else np.empty(0, dtype=np.float32)


def usable_cpus() -> int:
    """Return how many CPUs this process may use, by its affinity and by the quota of its container (cgroup 2)."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CPU_QUOTA.read_text().split()
        return cpus if quota == "max" else max(1, min(cpus, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        return cpus
