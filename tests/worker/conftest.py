"""Fixtures of the worker's tests: real TVM 0.19, tasks of the demo, a real server in the service's environment."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "demo"))
# TVM builds candidates in processes of its own, which have to import the operators, too.
os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)

from operators import OPERATORS
from serving import HANG_S, start
from tvm import auto_scheduler

from tlp_client.ansor import TLPRemoteModel
from tlp_client.breaker import CircuitBreaker
from tlp_client.connection import Connection

# The default deadline is for production: a machine that does much else may take longer for a sound answer.
TLPRemoteModel.__init__.__kwdefaults__["deadline_s"] = HANG_S

#: of the model that tests share
PLATFORM = "epyc-9004-2c"
CPU_TARGET = "llvm -mcpu=core-avx2 -num-cores 2"


@pytest.fixture(autouse=True)
def outbox_dir(tmp_path, monkeypatch):
    """Each test has a folder of its own for what waits: none sends what another left."""
    monkeypatch.setenv("TLP_OUTBOX_DIR", str(tmp_path / "outbox"))
    return tmp_path / "outbox"


@pytest.fixture(scope="session")
def server(session_dir):
    with start(session_dir / "worker-stream") as running:
        yield running


@pytest.fixture(scope="session")
def task():
    function, arguments = OPERATORS["matmul 256x256x256 + relu"]
    return auto_scheduler.SearchTask(func=function, args=arguments, target=CPU_TARGET)


@pytest.fixture(scope="session")
def small_task():
    """A task whose candidates are measured in milliseconds."""
    function, _ = OPERATORS["softmax 512x1024"]
    return auto_scheduler.SearchTask(func=function, args=(32, 64), target=CPU_TARGET)


@pytest.fixture(scope="session")
def cuda_hardware():
    """What TVM would ask a GPU for. Sketches, sampling and evolution run without one where it is stated."""
    return auto_scheduler.HardwareParams(
        num_cores=-1,
        vector_unit_bytes=16,
        cache_line_bytes=64,
        max_shared_memory_per_block=49152,
        max_local_memory_per_block=2**31 - 1,
        max_threads_per_block=1024,
        max_vthread_extent=8,
        warp_size=32,
    )


@pytest.fixture(scope="session")
def cuda_task(cuda_hardware):
    function, arguments = OPERATORS["matmul 256x256x256 + relu"]
    target = "cuda -arch=sm_80"
    return auto_scheduler.SearchTask(
        func=function, args=arguments, target=target, hardware_params=cuda_hardware
    )


def sample(task, count, seed=1):
    """Return states of a task as Ansor samples them."""
    policy = auto_scheduler.SketchPolicy(task, auto_scheduler.RandomModel(), verbose=0, seed=seed)
    states = []
    while len(states) < count:
        states += list(policy.sample_initial_population())
    return states[:count]


@pytest.fixture(scope="session")
def states(task):
    return sample(task, 512)


@pytest.fixture
def remote(server):
    """A model of the running server."""
    model = TLPRemoteModel(server.url, platform=PLATFORM, worker="test")
    yield model
    model.outbox.close()


def model_over(transport, **options):
    """Return a model whose requests go through a transport."""
    connection = Connection(
        "http://test", transport=transport, breaker=CircuitBreaker(failures=1000), **options
    )
    return TLPRemoteModel("http://test", connection=connection)
