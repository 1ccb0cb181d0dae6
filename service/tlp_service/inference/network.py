"""A network on ONNX Runtime, on the provider that was asked for and on no other."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnxruntime

from tlp_service.errors import BadSettings, BadVersion
from tlp_service.inference.plan import Plan

Device = Literal["cpu", "cuda"]

_PROVIDERS: dict[Device, tuple[str, dict[str, str]]] = {
    "cpu": ("CPUExecutionProvider", {}),
    "cuda": (
        "CUDAExecutionProvider",
        {
            "use_tf32": "0",  # 10 bits where float32 has 23: scores would no longer be the network's
            "arena_extend_strategy": "kSameAsRequested",  # not to the next power of two
        },
    ),
}

_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")

_NO_POSITIONS = np.empty((0, 1), dtype=np.int64)

#: Encoded rows, where the device keeps them: one value an output of the network.
Encoded = Sequence[onnxruntime.OrtValue]


class OnnxNetwork:
    """A network of a version on ONNX Runtime. Thread-safe.

    Parameters
    ----------
    path : Path
        The ONNX file, of the form that `tlp_service.training.export.Form` describes. Its inputs are ``rows``, ``positions``, one
        ``known_…`` per encoding, and one more: the values of the candidates, under a name of the family's choice.
    device : {"cpu", "cuda"}
        Where it must run.
    threads : int
        Threads that share the work of one run.

    Raises
    ------
    BadSettings
        If the provider of `device` cannot be had. ONNX Runtime itself would only log that and use the CPU.
    BadVersion
        If the file is not a network that ONNX Runtime can load.
    """

    def __init__(self, path: Path, device: Device, threads: int = 1) -> None:
        self._session = _session_of(path, device, threads)
        #: Execution provider, as ONNX Runtime reports it.
        self.provider = str(self._session.get_providers()[0])
        self.device: Device = device
        #: Whether candidates of several requests gain from being in one run: a GPU takes as long for few as for many.
        self.mixes = device == "cuda"
        self._encodings = [o.name for o in self._session.get_outputs() if o.name != "raw_scores"]
        self.known_names = [f"known_{name}" for name in self._encodings]
        shapes = {value.name: value.shape for value in self._session.get_inputs()}
        self._values = self._check_inputs(path, shapes)
        self.row_width = int(shapes["rows"][1])
        width = shapes[self._values][1]
        #: Values of a candidate; None if there are as many as places.
        self.value_width = width if isinstance(width, int) else None
        self._no_values = np.empty((0, self.value_width or 1), dtype=np.float32)
        self._no_rows = np.empty((0, self.row_width), dtype=np.float32)
        #: Bytes of one encoded row.
        self.encoded_bytes = 4 * sum(
            math.prod(size for size in shapes[name] if isinstance(size, int)) for name in self.known_names
        )
        # Every dimension without a fixed size is that of the rows.
        self._nothing_known = [
            onnxruntime.OrtValue.ortvalue_from_numpy(
                np.empty([size if isinstance(size, int) else 0 for size in shapes[name]], dtype=np.float32)
            )
            for name in self.known_names
        ]

    def _check_inputs(self, path: Path, shapes: Mapping[str, Sequence[int | str | None]]) -> str:
        """Return the name of the values, after a check of all inputs."""
        others = set(shapes) - {"rows", "positions", *self.known_names}
        if len(shapes) != 3 + len(self.known_names) or len(others) != 1:
            expected = ", ".join(["rows", *self.known_names, "positions"])
            raise BadVersion(
                f"{path}: inputs: expected {expected} and the values of candidates, got {', '.join(shapes)}"
            )
        if not isinstance(shapes["rows"][1], int):
            raise BadVersion(f"{path}: the width of its rows is not fixed")
        return others.pop()

    def encode(self, rows: npt.NDArray[np.float32]) -> Encoded:
        """Return the encodings of rows, shape (n, row width), to score from."""
        binding = self._bind(rows, self._nothing_known, _NO_POSITIONS, self._no_values)
        for name in self._encodings:
            binding.bind_output(name, self.device)
        self._session.run_with_iobinding(binding)
        encoded: Encoded = binding.get_outputs()
        return encoded

    def score(
        self, encoded: Encoded, positions: npt.NDArray[np.int64], values: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Return the raw scores of the candidates of one run, see `tlp_service.inference.plan.Run`."""
        binding = self._bind(self._no_rows, encoded, positions, values)
        binding.bind_output("raw_scores", "cpu")
        self._session.run_with_iobinding(binding)
        raw: npt.NDArray[np.float32] = binding.get_outputs()[0].numpy()
        return raw

    def score_all(
        self, table: npt.NDArray[np.float32], plan: Plan, chunk: int = 32
    ) -> npt.NDArray[np.float32]:
        """Return the raw scores of all candidates of a plan, shape (candidates,), in this thread.

        Parameters
        ----------
        table : ndarray, shape (rows, row width)
            Rows that the plan refers to.
        """
        encoded = self.encode(table)
        scores = np.empty(plan.candidates, dtype=np.float32)
        for first in range(0, len(scores), chunk):
            run = plan.run(first, chunk)
            scores[run.candidates] = self.score(encoded, run.positions, run.values)
        return scores

    def _bind(
        self,
        rows: npt.NDArray[np.float32],
        encoded: Encoded,
        positions: npt.NDArray[np.int64],
        values: npt.NDArray[np.float32],
    ) -> onnxruntime.IOBinding:
        binding = self._session.io_binding()
        for name, array in (("rows", rows), ("positions", positions), (self._values, values)):
            binding.bind_cpu_input(name, array)
        for name, value in zip(self.known_names, encoded, strict=True):
            binding.bind_ortvalue_input(name, value)
        return binding


def _session_of(path: Path, device: Device, threads: int) -> onnxruntime.InferenceSession:
    wanted, provider_options = _PROVIDERS[device]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # The arena keeps the most that a run ever took, and at the size of our runs malloc is as fast.
    options.enable_cpu_mem_arena = False
    # It would remember a plan for each combination of sizes, and there is no end to those.
    options.enable_mem_pattern = False
    # Spinning threads would burn a core while the server is idle.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if wanted not in onnxruntime.get_available_providers():
        raise BadSettings(f"TLP_DEVICE={device}: this onnxruntime has no {wanted} (install onnxruntime-gpu)")
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=[(wanted, provider_options)])
    except Exception as error:  # noqa: BLE001  onnxruntime's exceptions have no common base
        raise BadVersion(f"{path}: onnxruntime cannot load it: {error}") from None
    # A provider that is listed may still fail to start, which falls back without an error.
    actual = session.get_providers()[0]
    if actual != wanted:
        raise BadSettings(f"TLP_DEVICE={device}: onnxruntime runs the network on {actual} instead")
    return session


def usable_cpus() -> int:
    """Return how many CPUs this process may use, by its affinity and by the quota of its container (cgroup 2)."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CPU_QUOTA.read_text().split()
        return cpus if quota == "max" else max(1, min(cpus, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        return cpus
