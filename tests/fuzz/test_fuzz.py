"""A part of ``make fuzz`` with a fixed seed: no parser raises an undocumented exception, and no score changes."""

import logging

import pytest
from fuzz import fuzz_parsers, fuzz_sockets

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """The readers log a warning for nearly every input."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_inputs_are_read_or_refused_as_documented(tmp_path, seed):
    assert fuzz_parsers(1500, seed, tmp_path) == []


def test_mutated_bodies_over_sockets_change_no_score(tmp_path):
    assert fuzz_sockets(200, 1, tmp_path) == []
