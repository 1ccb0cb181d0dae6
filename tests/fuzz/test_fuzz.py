"""A slice of ``make fuzz``, seeded: nothing that parses raises what it does not document, and no score changes."""

import pytest
from fuzz import fuzz_parsers, fuzz_sockets


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_inputs_are_read_or_refused_as_documented(tmp_path, seed):
    assert fuzz_parsers(1500, seed, tmp_path) == []


def test_mutated_bodies_over_sockets_change_no_score(tmp_path):
    assert fuzz_sockets(200, 1, tmp_path) == []
