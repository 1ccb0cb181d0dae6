"""No process of the product writes outside its folders, or connects to a host that is not configured.

strace looks on, so that libraries in C++ are seen, too: ONNX Runtime 1.32 looked up a vendor's host and left a device
id in the home folder.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from serving import children_of, until

from tlp_service.measurements.embedded import embedded_redis
from tlp_service.measurements.stream import STREAM, Entry
from tlp_service.settings import shipped_model

#: Seconds after which a process counts as hung; strace makes it slow.
HANG_S = 1200
#: Paths that any process may open for writing: devices, /proc, and compiled modules of the installation.
HARMLESS = re.compile(r"/dev/|/proc/|.*/__pycache__(/|$)")
#: glibc asks this socket for names of users and hosts. Only a cache on the same machine listens to it.
NAME_CACHE = "/var/run/nscd/socket"

_ADDRESS = re.compile(
    r"sa_family=AF_INET6?, sin6?_port=htons\((\d+)\).*?(?:inet_addr\(|inet_pton\(AF_INET6, )\"([^\"]+)\""
)
_SOCKET = re.compile(r'sa_family=AF_UNIX, sun_path="([^"]+)"')
_WRITTEN = re.compile(r'\bopen(?:at)?\([^"]*"(/[^"]+)", [A-Z_|]*(?:O_WRONLY|O_RDWR|O_CREAT)')
_MADE = re.compile(r'\bmkdir(?:at)?\([^"]*"(/[^"]+)", \d+\) += 0')
_CALLS = "connect,sendto,sendmsg,sendmmsg,open,openat,creat,mkdir,mkdirat"


def _can_trace() -> bool:
    command = ["strace", "-f", "-o", "/dev/null", "true"]
    return shutil.which("strace") is not None and subprocess.run(command, check=False).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not _can_trace(), reason="there is no strace, or it may not look at processes (ptrace)"
    ),
]


@dataclass
class Traces:
    """Addresses that a traced process connected to, and absolute paths that it wrote or created."""

    addresses: set[tuple[str, int]]
    sockets: set[str]
    written: set[str]


class Sandbox:
    """Empty folders that serve as a process's home, working directory and temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.empty = [folder / name for name in ("home", "work", "temporary")]
        self._trace = folder / "trace"
        for path in self.empty:
            path.mkdir()

    def start(self, arguments: list[str], **settings: object) -> subprocess.Popen:
        home, work, temporary = map(str, self.empty)
        environment = {k: os.environ[k] for k in ("PATH", "LANG", "LD_LIBRARY_PATH") if k in os.environ}
        environment |= {"HOME": home, "TMPDIR": temporary}
        environment |= {f"XDG_{name}_HOME": f"{home}/{name}" for name in ("CONFIG", "CACHE", "DATA", "STATE")}
        environment |= {f"TLP_{name.upper()}": str(value) for name, value in settings.items()}
        trace = [
            "strace",
            "-f",
            "--seccomp-bpf",
            "-s",
            "256",
            "-e",
            f"trace={_CALLS}",
            "-o",
            str(self._trace),
        ]
        command = [*trace, sys.executable, "-m", "tlp_service", *map(str, arguments)]
        return subprocess.Popen(command, cwd=work, env=environment, stdout=subprocess.PIPE, text=True)

    def run(self, *arguments: object, status: int = 0, **settings: object) -> str:
        """Run a command, check what it wrote and connected to, and return its output."""
        with self.start(list(arguments), **settings) as process:
            output, _ = process.communicate(timeout=HANG_S)
        assert process.returncode == status
        self.check()
        return output

    def check(self, *sockets: str) -> None:
        """Assert that the folders are empty, nothing else was written, and it connected only to `sockets`."""
        left = [str(path) for folder in self.empty for path in folder.rglob("*")]
        traces = self._traces()
        temporary = str(self.empty[-1])
        mine = (str(self.data), temporary)
        others = [p for p in traces.written if not p.startswith(mine) and not HARMLESS.match(p)]
        connected = [p for p in traces.sockets if not p.startswith((*mine, *sockets)) and p != NAME_CACHE]
        assert (left, sorted(others), sorted(connected), traces.addresses) == ([], [], [], set())

    def _traces(self) -> Traces:
        text = self._trace.read_text(errors="replace")
        assert "openat(" in text
        return Traces(
            {(host, int(port)) for port, host in _ADDRESS.findall(text)},
            set(_SOCKET.findall(text)),
            set(_WRITTEN.findall(text)) | set(_MADE.findall(text)),
        )


@pytest.fixture
def sandbox(tmp_path):
    return Sandbox(tmp_path)


@pytest.fixture
def logs(sandbox, measured_lines):
    """A tuning log in the data folder."""
    sandbox.data.mkdir()
    path = sandbox.data / "measured.json"
    path.write_text("\n".join(measured_lines))
    return path


def end(process):
    """Terminate the process that strace traces, as an operator would."""
    (traced,) = children_of(process.pid).values()
    os.kill(traced, signal.SIGTERM)
    assert process.wait(timeout=HANG_S) == 0
    process.stdout.close()


def post(url, document):
    request = urllib.request.Request(url, json.dumps(document).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=HANG_S) as answer:
        return json.load(answer)


def test_a_server_its_recorder_and_its_trainer(sandbox, measured_request):
    process = sandbox.start(
        ["serve", "--port", 0, "--data-dir", sandbox.data], recorder=1, trainer=1, train_records=10**6
    )
    url = process.stdout.readline().split()[-1]
    steps = [record["record"]["i"][1][1] for record in measured_request["records"]]
    task = dict(
        zip(("workload_key", "target"), measured_request["records"][0]["record"]["i"][0], strict=False)
    )
    answer = post(f"{url}/v1/predict", {"format": 1, "task": task, "candidates": steps})
    assert len(answer["scores"]) == len(steps)
    post(f"{url}/v1/measurements", measured_request)
    until(lambda: list((sandbox.data / "records").glob("platform=*/*.parquet")))
    until(lambda: "tlp_prediction_measured{" in urllib.request.urlopen(f"{url}/metrics").read().decode())
    end(process)
    sandbox.check()


def test_a_recorder_alone(sandbox, measured_request, tmp_path):
    with embedded_redis(tmp_path / "outside") as url, redis.Redis.from_url(url) as client:
        for record in measured_request["records"]:
            entry = Entry(record["id"], json.dumps(record["record"]), "w", "epyc", "")
            client.xadd(STREAM, entry._asdict())
        process = sandbox.start(["recorder"], redis_url=url, data_dir=sandbox.data)
        until(lambda: list((sandbox.data / "records").glob("platform=*/*.parquet")))
        end(process)
        sandbox.check(url.removeprefix("unix://"))


@pytest.mark.training
def test_a_trainer_that_makes_a_step(sandbox, logs, tmp_path):
    sandbox.run("records", "import", logs, "--store", sandbox.data / "records", "--platform", "epyc")
    registry = ("--registry", str(sandbox.data / "models"))
    sandbox.run("models", "publish", shipped_model(), *registry)
    sandbox.run("models", "activate", shipped_model().name, *registry)
    with embedded_redis(tmp_path / "outside") as url:
        process = sandbox.start(
            ["trainer", "--once"], redis_url=url, data_dir=sandbox.data, train_records=100
        )
        process.communicate(timeout=HANG_S)
        assert process.returncode == 0
        sandbox.check(url.removeprefix("unix://"))
    assert len(list((sandbox.data / "models").glob("*/manifest.json"))) == 2


@pytest.mark.training
def test_a_training(sandbox, logs):
    sandbox.run(
        "train", "--records", logs, "--platform", "epyc", "--out", sandbox.data / "out", "--epochs", 1
    )
    assert list((sandbox.data / "out").glob("loopnest-*/manifest.json"))


def test_records_evaluation_and_its_plot(sandbox, logs):
    store, plot = sandbox.data / "records", sandbox.data / "plot.png"
    sandbox.run("records", "import", logs, "--store", store, "--platform", "epyc")
    assert "epyc" in sandbox.run("records", "show", store)
    sandbox.run("evaluate", store, "--json", sandbox.data / "figures.json", "--plot", plot)
    assert plot.stat().st_size > 0


def test_models(sandbox):
    registry = ("--registry", str(sandbox.data / "models"))
    base, published = shipped_model(), shipped_model("published")
    for folder in (base, published):
        sandbox.run("models", "publish", folder, *registry)
    sandbox.run("models", "activate", published.name, *registry)
    sandbox.run("models", "activate", base.name, *registry)
    sandbox.run("models", "rollback", *registry)
    assert published.name in sandbox.run("models", "list", *registry)
    sandbox.run("models", "show", base.name, *registry)
    sandbox.run("models", "diff", base.name, published.name, *registry)
    sandbox.run("models", "prune", *registry)


def test_a_library_that_imports_the_package(sandbox):
    """Importing any module of the package sets the variable before that module can import ONNX Runtime."""
    program = "import tlp_service.inference.network, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    found = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True)
    assert found.stdout == b"1\n"
