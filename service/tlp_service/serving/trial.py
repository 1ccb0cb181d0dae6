"""``python -m tlp_service.serving.trial``: loads and runs a version in a process that can be killed.

A network can compute without end, take all memory, or crash ONNX Runtime, and a thread cannot be stopped. So each version
from a registry is tried here first. `tlp_service.serving.loader` starts this process and reads its verdict.
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
from tlp_service.families.lookup import family_named
from tlp_service.inference.network import Device
from tlp_service.scoring.scorer import Scorer
from tlp_service.serving.calibration import Calibration, calibrate

#: Candidates that each network scores. A network can loop for ever for some inputs only.
_CANDIDATES = 64

#: Bytes that a trial on a CPU may allocate: several times the largest network. CUDA maps far more memory than it uses, so
#: a trial on a GPU has no limit.
_MAX_BYTES = 4 << 30

_OOM_SCORE = Path("/proc/self/oom_score_adj")


class Trial(msgspec.Struct, frozen=True):
    """The arguments of a trial.

    Parameters
    ----------
    folder : str
        Absolute path of the version.
    device : {"cpu", "cuda"}
        Where the networks run.
    threads : int
        Threads that share the work of one batch; with `chunk`, the largest number of threads to calibrate with.
    max_cpu_s : int
        Seconds of processor time after which the process is killed. Unlike wall-clock time it does not depend on other load.
    chunk : int or None
        The argument of `calibrate`, or None to skip the calibration.
    """

    folder: str
    device: Device
    threads: int
    max_cpu_s: int
    chunk: int | None = None


class Verdict(msgspec.Struct, frozen=True):
    """The result of a trial.

    Parameters
    ----------
    fault : {"version", "settings"} or None
        Whether the version or a setting keeps it from being loaded; None if it can be loaded.
    reason : str
        Why it can't be loaded.
    calibration : Calibration or None
        The fastest way to run it, if the trial had a chunk.
    """

    fault: Literal["version", "settings"] | None = None
    reason: str = ""
    calibration: Calibration | None = None


def _limit(trial: Trial) -> None:
    """Set the limits of this process, and make it the first that the kernel kills when memory runs out."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_cpu(trial.max_cpu_s)
    if trial.device == "cpu":
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = _MAX_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MAX_BYTES)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    with contextlib.suppress(OSError):
        _OOM_SCORE.write_text("1000")


def _limit_cpu(seconds: float) -> None:
    """Make the kernel kill this process after `seconds` of processor time, summed over its threads."""
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
            inputs = family_named(network.features).probe(network, _CANDIDATES)
            scorer.loaded(network).score_all(inputs.table, inputs.plan)
        if trial.chunk is None:
            return Verdict()
        # The network returns, so the calibration ends, too. It uses all threads, so it may take that much more time.
        _limit_cpu(time.process_time() + trial.max_cpu_s * trial.threads)
        network = scorer.manifest.networks[0]
        return Verdict(calibration=calibrate(folder, network, trial.device, trial.threads, trial.chunk))
    except BadSettings as error:
        return Verdict("settings", str(error))
    except Exception as error:  # noqa: BLE001  onnxruntime's exceptions have no common base
        reason = str(error)
        if isinstance(error, MemoryError) or "alloc" in reason:
            reason += f"; a trial may allocate at most {_MAX_BYTES} bytes"
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
    os._exit(0)  # a crash while the interpreter ends would count against the version


if __name__ == "__main__":
    main()
