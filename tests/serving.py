"""Starts a real ``tlp serve`` as its own process, for tests of both environments."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import urllib3

#: Seconds after which a test counts as hung. This only ends a hang; it is not a limit on speed.
HANG_S = 600


def at_once(compute):
    """Yield no steps, and return what `compute` returns."""
    return compute()
    yield


def until(condition, seconds=HANG_S, pause_s=0.05):
    """Wait until `condition` returns a true value, and return that value."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it never came"
        time.sleep(pause_s)
    return found


async def until_in_loop(condition, seconds=HANG_S, pause_s=0.01):
    """Do what `until` does, on the event loop."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it never came"
        await asyncio.sleep(pause_s)
    return found


class Server:
    """A running server: `url`, and how to talk to it and end it.

    The constructor waits until the server is ready, unless `wait` is False. With `hold` it scores nothing while that
    file exists, and with `redis_wait_s` its requests wait that long for a connection to Redis, see `held_server.py`.
    """

    def __init__(
        self,
        python: str,
        data_dir: Path,
        port: int = 0,
        *,
        wait: bool = True,
        hold: Path | None = None,
        redis_wait_s: float = 0,
        **settings: object,
    ) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TLP_")}
        # Tests look into the stream, which a recorder would empty, and at versions, which a trainer would change.
        settings.setdefault("recorder", 0)
        settings.setdefault("trainer", 0)
        environment |= {f"TLP_{name.upper()}": str(value) for name, value in settings.items()}
        self._log = data_dir.with_suffix(".log").open("a+")
        program = ["-m", "tlp_service"]
        if hold or redis_wait_s:
            environment |= {"HOLD_FILE": str(hold or ""), "REDIS_WAIT_S": str(redis_wait_s)}
            program = [str(Path(__file__).with_name("held_server.py"))]
        self.process = subprocess.Popen(
            [python, *program, "serve", "--port", str(port), "--data-dir", str(data_dir)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "listening on" not in line:
            self.stop()
            raise RuntimeError(f"the server did not start: {self.log}")
        self.url = line.split()[-1]
        self.port = int(self.url.rsplit(":", 1)[1])
        self._http = urllib3.PoolManager(retries=False)
        if wait:
            until(lambda: self.get("/health/ready")[0] == 200)

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def request(self, method, path, body=None, headers=None, timeout=HANG_S):
        """Return (status, headers, body)."""
        answer = self._http.request(
            method, self.url + path, body=body, headers=headers or {}, timeout=timeout
        )
        return answer.status, answer.headers, answer.data

    def get(self, path):
        status, _, body = self.request("GET", path)
        return status, body

    def post(self, path, document, content_type="application/json", **headers):
        """Post a document (encoded as JSON unless it is bytes) and return (status, decoded answer)."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        status, _, answer = self.request("POST", path, body, {"Content-Type": content_type, **headers})
        return status, json.loads(answer)

    def metric(self, line_start):
        """Value of the metric whose line begins so."""
        for line in self.get("/metrics")[1].decode().splitlines():
            if line.startswith(line_start + " "):
                return float(line.rsplit(" ", 1)[1])
        return None

    def kill(self):
        """End it as a crash would."""
        self.process.send_signal(signal.SIGKILL)
        self._reap()

    def stop(self):
        """End it as an operator would, and return its exit status."""
        self.process.terminate()
        return self._reap()

    def _reap(self):
        status = self.process.wait(timeout=HANG_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            self.stop()
        self._log.close()


def request_of(candidates):
    return {"format": 1, "task": {"workload_key": "[]", "target": "llvm"}, "candidates": candidates}


def indexed(candidates, times):
    """Return the request for candidates so many times, as clients send it."""
    known: dict[str, int] = {}
    indices = [[known.setdefault(json.dumps(step), len(known)) for step in c] for c in candidates]
    return {**request_of(indices * times), "primitives": [json.loads(step) for step in known]}


#: Python of the service's environment, for tests that run in the worker's
SERVICE_PYTHON = os.environ.get(
    "TLP_SERVICE_PYTHON", str(Path(__file__).resolve().parent.parent / ".venv" / "bin" / "python")
)


def start(data_dir: Path, **settings) -> Server:
    """Start a server with this interpreter if it has the service, else with the service's own."""
    python = sys.executable if _has_service() else SERVICE_PYTHON
    return Server(python, data_dir, **settings)


def children_of(pid: int) -> dict[str, int]:
    """Return name -> process id of the server's children."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
                command = (folder / "cmdline").read_text()
            except (OSError, IndexError):
                continue
            if parent == pid and "tlp_service.serving.trial" not in command:  # a trial is no lasting child
                beside = (name for name in ("recorder", "trainer") if name in command)
                found[next(beside, "redis")] = int(folder.name)
    return found


def _has_service() -> bool:
    try:
        import fastapi  # noqa: F401
    except ImportError:
        return False
    return True
