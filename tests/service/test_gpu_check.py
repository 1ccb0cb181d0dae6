"""The GPU check cannot run here; that it would run is shown on the CPU, by the same code."""

import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest
import torch

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gpu_check"


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], check=False, capture_output=True, text=True
    )


def test_without_a_device_it_says_so():
    if torch.cuda.is_available() or "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("there is a device")
    ended = run()
    assert ended.returncode == 3
    assert "nothing was checked" in ended.stderr


def test_it_runs_to_its_end_on_the_cpu():
    ended = run("--device", "cpu", "--candidates", "32", "--runs", "1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("\n  engine  ") == 2
    assert ended.stdout.count("from distinct rows") == 2
