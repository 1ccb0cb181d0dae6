"""Programs that the server runs beside itself, as long as it lives."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
#: Seconds between two looks at a child, before it is started again, and that it has to end.
_LOOK_S, _PAUSE_S, _END_S = 0.5, 1.0, 10.0


class Child:
    """A program that is started again should it end by itself.

    Parameters
    ----------
    name : str
        For the log.
    command : sequence of str
        What to run.
    environment : mapping or None
        Its environment; that of this process without it.
    keep : sequence of int
        File descriptors that it inherits.
    is_quiet : bool
        Whether what it writes to its standard streams is for nobody.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        keep: Sequence[int] = (),
        is_quiet: bool = False,
    ) -> None:
        self.name = name
        self._command = list(command)
        self._environment = environment
        self._keep = tuple(keep)
        self._output = subprocess.DEVNULL if is_quiet else None
        self._stopping = threading.Event()
        self.process = self._spawn()
        self._watcher = threading.Thread(target=self._watch, name=f"tlp-{name}", daemon=True)

    def watch(self) -> None:
        """From now on, start it again when it ends."""
        self._watcher.start()

    def stop(self) -> None:
        """Ask it to end, and make it where it doesn't."""
        self._stopping.set()
        self.process.terminate()
        try:
            self.process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=self._environment,
            pass_fds=self._keep,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  one system call, no allocation: safe beside threads
            start_new_session=True,  # Ctrl-C is for the server, which stops its children last
        )

    def _watch(self) -> None:
        # Linux sends the death signal when the thread ends that made the child; this one ends with the process.
        while not self._stopping.wait(_LOOK_S):
            status = self.process.poll()
            if status is not None:
                log.error("%s ended with status %d, starting it again", self.name, status)
                with contextlib.suppress(OSError):
                    self.process = self._spawn()
                self._stopping.wait(_PAUSE_S)


def _die_with_parent() -> None:
    """Ask Linux to end this child with its parent, so that kill -9 of the server leaves none behind."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
