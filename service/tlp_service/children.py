"""Supervises the child processes of the server: restarts them with back-off, and ends them with the server."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
#: Seconds between two checks of a child, seconds that it has to end, and its first and maximum pause before a restart.
_LOOK_S, _END_S, _PAUSE_S, _MAX_PAUSE_S = 0.5, 10.0, 1.0, 60.0
#: Seconds that a child must run before its start counts as successful.
_RUNS_S = 30.0


class Stopping:
    """A flag that SIGINT and SIGTERM set.

    It is no `Event`, since the handler may interrupt itself and would deadlock on a lock: when a parent with many
    threads dies, many signals arrive.
    """

    def __init__(self) -> None:
        self._came = False

    def listen(self) -> None:
        """Install the signal handlers; must be called in the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def is_set(self) -> bool:
        """Return whether a signal has arrived."""
        return self._came

    def wait(self, seconds: float) -> bool:
        """Wait for a signal or the timeout; return whether a signal has arrived."""
        end = time.monotonic() + seconds
        while not self._came and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
        return self._came

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True


class Child:
    """A program that is restarted if it ends by itself.

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
    prepare : callable
        Called before each start; an OSError postpones the start.
    is_lost : callable
        Returns whether to restart the program although it runs; called twice per second.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        keep: Sequence[int] = (),
        is_quiet: bool = False,
        prepare: Callable[[], None] = lambda: None,
        is_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self._command = list(command)
        self._environment = environment
        self._keep = tuple(keep)
        self._output = subprocess.DEVNULL if is_quiet else None
        self._prepare = prepare
        self._is_lost = is_lost
        self._stopping = threading.Event()
        self.process = self._spawn()
        self._watcher = threading.Thread(target=self._watch, name=f"tlp-{name}", daemon=True)

    def watch(self) -> None:
        """Restart the program from now on whenever it ends."""
        self._watcher.start()

    def stop(self) -> None:
        """Ask the program to end, and kill it if it does not."""
        self._stopping.set()
        self._end()

    def _end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _spawn(self) -> subprocess.Popen[bytes]:
        self._prepare()
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=self._environment,
            pass_fds=self._keep,
            preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509  two system calls: safe beside threads
            start_new_session=True,  # keeps Ctrl-C from the children, since the server stops them last
        )

    def _watch(self) -> None:
        # Linux sends the death signal when the thread that made the child ends, so a thread that ends with the process
        # must make it.
        pause_s, began_s = _PAUSE_S, time.monotonic()
        while not self._stopping.wait(_LOOK_S):
            status = self.process.poll()
            if status is None:
                if self._is_lost():
                    log.error("%s cannot be reached any more and is restarted", self.name)
                    self._end()
                continue
            if time.monotonic() - began_s > _RUNS_S:
                pause_s = _PAUSE_S
            log.error("%s ended with status %d, starting it again", self.name, status)
            # The first restart is immediate, later ones back off: a program that cannot run must not waste the CPU.
            with contextlib.suppress(OSError):
                self.process = self._spawn()
            began_s = time.monotonic()
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)


def die_with_parent(parent: int, number: int = signal.SIGTERM) -> None:
    """Make Linux signal this child when its parent ends, so that kill -9 of the server leaves no child behind."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)
