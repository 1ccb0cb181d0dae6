import json
from pathlib import Path

import pytest
from serving import start


@pytest.fixture(scope="session")
def server(session_dir: Path, linear_version: Path):
    with start(session_dir / "shared-stream", model=linear_version, max_body_mib=8) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture
def good():
    """A predict request, and its scores: the sums of the stages are 3, 2 and 0."""
    request = {
        "format": 1,
        "task": {"workload_key": "[]", "target": "llvm"},
        "primitives": [["CI", 1], ["CI", 2]],
        "candidates": [[0, 1], [1], []],
    }
    return request, [7 / 8, 5 / 6, 1 / 2]


@pytest.fixture
def measured_request(measured_lines):
    """A measurement request of three records."""
    records = [{"id": f"r-{n}", "record": json.loads(line)} for n, line in enumerate(measured_lines[:3])]
    return {"format": 1, "worker": "w", "platform": "epyc", "records": records}
