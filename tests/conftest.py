"""Fixtures for all tests: committed records, a model whose scores can be computed by hand, a running server."""

import os
from pathlib import Path

import pytest

# Tests may import onnxruntime before the package, which turns telemetry off as well.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the worker's environment has none
    pass
else:
    # The time of an example depends on the machine, so it is not checked.
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def measured_lines() -> list[str]:
    """248 records measured with Ansor: 24 of each of 10 CPU tasks, and 8 failed runs of another."""
    return (DATA / "measured.json").read_text().splitlines()


@pytest.fixture(scope="session")
def cuda_lines() -> list[str]:
    """30 CUDA candidates of 3 tasks, sampled by Ansor; their result means nothing."""
    return (DATA / "cuda.json").read_text().splitlines()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def session_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("session")


@pytest.fixture(scope="session")
def linear_version(session_dir: Path) -> Path:
    """A version that scores the sum of the stages; platforms epyc, and k80 and v100."""
    from models import write_linear_version  # the worker's environment has no onnx

    return write_linear_version(session_dir / "linear")
