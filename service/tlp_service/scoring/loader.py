"""Loads versions after a trial in a process of its own."""

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
from tlp_service.scoring.calibration import Calibration
from tlp_service.scoring.network import Device
from tlp_service.scoring.scorer import Scorer
from tlp_service.scoring.trial import Trial, Verdict

#: Seconds of processor time that a trial may take. Loading and running `base` takes less than one, CUDA's start some more.
MAX_CPU_S = 60

#: Seconds that a trial may take, whatever it waits for. Many times the processor time, for the machine may be busy.
_MAX_WALL_S = 600.0

#: Seconds that a killed process gets to end; one that hangs in a file system never does.
_ENDING_S = 10.0

#: Signals by which a process ends itself. Any other comes from outside and says nothing about the version.
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
    """Loads versions that somebody else made. Thread-safe.

    Parameters
    ----------
    device : {"cpu", "cuda"}
        Where their networks run.
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
            If it can't be loaded, never returns, or crashes.
        BadSettings
            If the device can't be had.
        OSError
            If that could not be found out.
        """
        self._check(self._try(folder, self._device, None))
        return Scorer(folder, self._device, self._threads)

    def calibrate(self, folder: Path, chunk: int) -> Calibration:
        """Try a version with up to `threads` threads in all, and return how it runs fastest.

        Raises
        ------
        BadVersion, BadSettings, OSError
            As when it is loaded.
        """
        verdict = self._try(folder, self._device, chunk)
        self._check(verdict)
        assert verdict.calibration is not None, "it was asked for"
        return verdict.calibration

    def stop(self) -> None:
        """Kill the trials that are running, and refuse further ones with OSError."""
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
            # A GPU in exclusive mode belongs to the server, which has it since its start.
            return self._run(Trial(str(folder.absolute()), "cpu", self._threads, self._max_cpu_s))
        return verdict

    def _run(self, trial: Trial) -> Verdict:
        process = self._spawn(trial)
        try:
            said, _ = process.communicate(timeout=_MAX_WALL_S)
        except subprocess.TimeoutExpired:
            raise BadVersion(f"loading and running it took more than {_MAX_WALL_S:.0f} s") from None
        finally:
            _end(process)
            with self._lock:
                self._running.discard(process)
        if process.returncode == 0:
            return msgspec.json.decode(said, type=Verdict)
        raise self._error(process.returncode, trial)

    def _spawn(self, trial: Trial) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tlp_service.scoring.trial", str(os.getpid())]
        with self._lock:
            if self._is_stopped:
                raise OSError("no version is loaded any more: the server is stopping")
            process = subprocess.Popen(
                [*command, msgspec.json.encode(trial).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if not name.startswith("TLP_")},
                start_new_session=True,  # Ctrl-C is for the server and would look like a fault of the version
            )
            self._running.add(process)
        return process

    def _error(self, status: int, trial: Trial) -> Exception:
        """Return what the end of a trial without a verdict means."""
        if status == -signal.SIGXCPU:
            return BadVersion(
                f"loading and running it did not end within {trial.max_cpu_s} s of processor time"
            )
        if -status in _CRASHES:
            return BadVersion(f"loading and running it crashes the process ({signal.Signals(-status).name})")
        if self._is_stopped:
            return OSError("no version is loaded any more: the server is stopping")
        if status == -signal.SIGKILL:
            return OSError("the process that tries the version was killed, as where memory runs out")
        return OSError(
            f"the process that tries the version ended with status {status}; see above in this log"
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Make sure that a process is gone, and close its pipe."""
    if process.poll() is None:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_S)
    if process.stdout is not None:
        process.stdout.close()
