"""``python -m tlp_service.scoring.trial``: loads a version and runs it, in a process that may be killed.

A network can compute without end, take all memory, or crash ONNX Runtime, and no thread can be stopped. So what comes from a registry is
first tried here; `tlp_service.scoring.loader` starts this process and reads what it says.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Literal

import msgspec

from tlp_service.children import die_with_parent
from tlp_service.errors import BadSettings
from tlp_service.scoring.calibration import Calibration, calibrate
from tlp_service.scoring.inputs import probe_inputs
from tlp_service.scoring.network import Device
from tlp_service.scoring.scorer import Scorer

#: Candidates that each network scores; a network may end for none and go on for ever for some.
_CANDIDATES = 64

#: Bytes that a trial may allocate on a CPU: the largest network several times. CUDA maps far more than it uses, so it has no such limit.
_MAX_BYTES = 4 << 30

_OOM_SCORE = Path("/proc/self/oom_score_adj")


class Trial(msgspec.Struct, frozen=True):
    """What is to be tried.

    Parameters
    ----------
    folder : str
        Absolute path of the version.
    device : {"cpu", "cuda"}
        Where its networks run.
    threads : int
        Threads that share the work of one batch; when calibrating, threads that there may be in all.
    max_cpu_s : int
        Seconds of processor time after which the process is killed. A busy machine doesn't shorten them, as it would those of a clock.
    chunk : int or None
        None to load it only, else the argument of `calibrate`.
    """

    folder: str
    device: Device
    threads: int
    max_cpu_s: int
    chunk: int | None = None


class Verdict(msgspec.Struct, frozen=True):
    """What the trial found.

    Parameters
    ----------
    fault : {"version", "settings"} or None
        Whose fault it is that the version can't be loaded; None if it can.
    reason : str
        Why it can't.
    calibration : Calibration or None
        How it runs fastest, where that was asked for.
    """

    fault: Literal["version", "settings"] | None = None
    reason: str = ""
    calibration: Calibration | None = None


def _limit(trial: Trial) -> None:
    """Give this process its limits, and make it the first to go where memory runs out."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_cpu(trial.max_cpu_s)
    if trial.device == "cpu":
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = _MAX_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MAX_BYTES)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    with contextlib.suppress(OSError):
        _OOM_SCORE.write_text("1000")


def _limit_cpu(seconds: float) -> None:
    """Have the kernel kill this process after so many seconds of processor time, all its threads together."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(seconds)
    resource.setrlimit(
        resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
    )


def _try(trial: Trial) -> Verdict:
    folder = Path(trial.folder)
    try:
        scorer = Scorer(folder, trial.device, trial.threads)
        for network in scorer.manifest.networks:
            loaded = scorer.loaded(network)
            inputs = probe_inputs(loaded, _CANDIDATES)
            loaded.score_all(inputs.table, inputs.plan)
        if trial.chunk is None:
            return Verdict()
        # It returns, so what follows is bounded, too; but all processors take part in it.
        _limit_cpu(time.process_time() + trial.max_cpu_s * trial.threads)
        network = scorer.manifest.networks[0]
        path = folder / network.file
        return Verdict(calibration=calibrate(path, network.steps, trial.device, trial.threads, trial.chunk))
    except BadSettings as error:
        return Verdict("settings", str(error))
    except Exception as error:  # noqa: BLE001  onnxruntime's exceptions have no common base
        reason = str(error)
        if isinstance(error, MemoryError) or "alloc" in reason:
            reason += f"; a trial may take {_MAX_BYTES} bytes of memory"
        return Verdict("version", reason)


def main() -> None:
    """Try the version that the arguments describe, and write the verdict to standard output."""
    parent, encoded = sys.argv[1:]
    die_with_parent(int(parent), signal.SIGKILL)
    trial = msgspec.json.decode(encoded, type=Trial)
    _limit(trial)
    verdict = _try(trial)
    sys.stdout.buffer.write(msgspec.json.encode(verdict))
    sys.stdout.flush()
    os._exit(0)  # what happens while everything is torn down is no fault of the version


if __name__ == "__main__":
    main()
