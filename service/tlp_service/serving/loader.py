"""Loads versions, each after a trial in a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from tlp_service.errors import BadSettings, BadVersion
from tlp_service.inference.network import Device
from tlp_service.scoring.scorer import Scorer
from tlp_service.serving.calibration import Calibration
from tlp_service.serving.trial import Trial, Verdict

#: Maximum seconds of processor time per trial.
#: Loading and running `loopnest` takes less than one second, and starting CUDA a few.
MAX_CPU_S = 60

#: Wall-clock seconds that a trial may take. Far more than the processor time, since the machine may be busy.
_MAX_WALL_S = 600.0

#: Seconds to wait for the end of a killed process. A process that hangs in a file system never ends.
_ENDING_S = 10.0

#: Signals of a crash. Any other signal comes from outside and says nothing about the version.
_CRASHES = {
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGSYS,
    signal.SIGTRAP,
}


class VersionLoader:
    """Loads versions from untrusted registries. Thread-safe.

    Parameters
    ----------
    device : {"cpu", "cuda"}
        Device on which the networks run.
    threads : int
        Threads that share the work of one batch.
    max_cpu_s : int
        Seconds of processor time that loading and running one may take.
    """

    def __init__(self, device: Device = "cpu", threads: int = 1, max_cpu_s: int = MAX_CPU_S) -> None:
        self._device: Device = device
        self._threads = threads
        self._max_cpu_s = max_cpu_s
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_stopped = False

    def __call__(self, folder: Path) -> Scorer:
        """Return the version in a folder, ready to score.

        Raises
        ------
        BadVersion
            If loading or running the version fails, crashes, or exceeds a limit.
        BadSettings
            If the device is not available.
        OSError
            If the trial ended for a reason outside the version.
        """
        self._check(self._try(folder, self._device, None))
        return Scorer(folder, self._device, self._threads)

    def calibrate(self, folder: Path, chunk: int) -> Calibration:
        """Try a version with up to `threads` threads, and return the fastest way to run it.

        Raises
        ------
        BadVersion, BadSettings, OSError
            See `__call__`.
        """
        verdict = self._try(folder, self._device, chunk)
        self._check(verdict)
        assert verdict.calibration is not None, "a trial with a chunk calibrates"
        return verdict.calibration

    def stop(self) -> None:
        """Kill the running trials, and refuse further ones with OSError."""
        with self._lock:
            self._is_stopped = True
            for process in self._running:
                process.kill()

    def _check(self, verdict: Verdict) -> None:
        if verdict.fault == "version":
            raise BadVersion(verdict.reason)
        if verdict.fault == "settings":
            raise BadSettings(verdict.reason)

    def _try(self, folder: Path, device: Device, chunk: int | None) -> Verdict:
        verdict = self._run(Trial(str(folder.absolute()), device, self._threads, self._max_cpu_s, chunk))
        if verdict.fault == "settings" and device == "cuda" and chunk is None:
            # A GPU in exclusive mode is not available to a second process: try on the CPU.
            return self._run(Trial(str(folder.absolute()), "cpu", self._threads, self._max_cpu_s))
        return verdict

    def _run(self, trial: Trial) -> Verdict:
        process = self._spawn(trial)
        try:
            said, _ = process.communicate(timeout=_MAX_WALL_S)
        except subprocess.TimeoutExpired:
            raise BadVersion(f"loading and running the version took more than {_MAX_WALL_S:.0f} s") from None
        finally:
            _end(process)
            with self._lock:
                self._running.discard(process)
        if process.returncode == 0:
            return msgspec.json.decode(said, type=Verdict)
        raise self._error(process.returncode, trial)

    def _spawn(self, trial: Trial) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tlp_service.serving.trial", str(os.getpid())]
        with self._lock:
            if self._is_stopped:
                raise OSError("the version is not loaded: the server is stopping")
            process = subprocess.Popen(
                [*command, msgspec.json.encode(trial).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if not name.startswith("TLP_")},
                start_new_session=True,  # Ctrl-C would otherwise also end the trial
            )
            self._running.add(process)
        return process

    def _error(self, status: int, trial: Trial) -> Exception:
        """Return the error for a trial that ended without a verdict."""
        if status == -signal.SIGXCPU:
            return BadVersion(
                f"loading and running the version did not end within {trial.max_cpu_s} s of processor time"
            )
        if -status in _CRASHES:
            return BadVersion(
                f"loading and running the version crashes the process ({signal.Signals(-status).name})"
            )
        if self._is_stopped:
            return OSError("the version is not loaded: the server is stopping")
        if status == -signal.SIGKILL:
            return OSError("the process that tries the version was killed; the machine may be out of memory")
        return OSError(
            f"the process that tries the version ended with status {status}; see its output above in this log"
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that still runs, and close its pipe."""
    if process.poll() is None:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_S)
    if process.stdout is not None:
        process.stdout.close()
