"""One fabricated cost must not change figures or labels at will."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlp_client.records import RecordParser
from tlp_service.families.loopnest.encoder import NestEncoder
from tlp_service.ranking.plausible import MIN_PLAUSIBLE_S, is_plausible, min_cost_s
from tlp_service.training.dataset import ImportReport, build_sets
from tlp_service.training.encoder import best_over_cost

HASH = "51c977fb71f791c1e32d4e8c7a8e5cc7"


def shaped(*shapes):
    return json.dumps([HASH, *shapes])


@pytest.mark.parametrize(
    ("workload", "least"),
    [
        ('["matmul", 4096, 4096, 4096]', MIN_PLAUSIBLE_S),
        ('["get_expr", "conv", [64, 4096, 4096, 3]]', MIN_PLAUSIBLE_S),  # attributes, no shapes
        (shaped([4096, 4096], [8, 8]), MIN_PLAUSIBLE_S),  # of an output of 64 elements
        (shaped([8, 8], [4096, 4096]), 4096 * 4096 / 1e14),
        (shaped([8, 8], [-1, 4096, 4096]), MIN_PLAUSIBLE_S),
        (shaped([8], [10**4000]), 1e4),
        (shaped([8], [True, 4096]), MIN_PLAUSIBLE_S),
        ("a name", MIN_PLAUSIBLE_S),
        ("[" * 10_000, MIN_PLAUSIBLE_S),
        ("[]", MIN_PLAUSIBLE_S),
    ],
)
def test_the_least_time_of_a_task_is_that_of_writing_its_output(workload, least):
    assert min_cost_s(workload) == least


@pytest.mark.parametrize("fabricated", [1e-9, 9.9e-9, 2e-8, 1e-6, 1.9e-5])
def test_one_fabricated_cost_does_not_count_and_the_others_do(fabricated):
    honest = np.linspace(2e-3, 9e-3, 40)
    assert is_plausible("w", np.array([*honest, fabricated])).tolist() == [True] * 40 + [False]


def test_what_is_possible_counts_however_slow_the_others_are():
    """The widest task of the public logs: its best cost is a factor of 49 below the lower quartile."""
    assert is_plausible("w", np.array([1e-3, *[49e-3] * 20])).all()
    # With two costs there is no telling which one is fabricated.
    assert is_plausible("w", np.array([1e-6, 1.0])).all()
    assert is_plausible("w", np.array([1e-9, 1.0])).tolist() == [False, True]
    assert is_plausible("w", np.array([1e-9, 1e-9])).tolist() == [False, False]
    assert is_plausible("w", np.empty(0)).tolist() == []


@given(st.lists(st.floats(1e-9, 1e9), max_size=30))
def test_three_quarters_of_what_is_possible_always_count(costs):
    found = is_plausible("w", np.array(costs))
    possible = sum(cost >= MIN_PLAUSIBLE_S for cost in costs)
    assert found.sum() >= 0.75 * possible


def built(lines):
    """Return the training sets of lines, and the report about the lines."""
    parser, report = RecordParser(), ImportReport()
    sets = build_sets((("p", parser.parse(line)) for line in lines), {"cpu": NestEncoder()}, report)
    return sets["cpu"], report


def fabricated(line, cost, n):
    """Return a record of the same task as a line, with another candidate and a made-up cost."""
    document = json.loads(line)
    document["i"][1][1].append(["PR", 0, 0, f"auto_unroll_max_step${n}"])
    document["r"][0] = [cost]
    return json.dumps(document)


@pytest.mark.parametrize("cost", [1e-9, 1e-7])
def test_one_fabricated_record_a_task_changes_no_label_of_the_others(measured_lines, cost):
    honest, before = built(measured_lines)
    first_of_each = {json.loads(line)["i"][0][0]: line for line in measured_lines}.values()
    false = [fabricated(line, cost, n) for n, line in enumerate(first_of_each)]
    poisoned, report = built([*measured_lines, *false])
    assert len(honest.tasks) == len(poisoned.tasks) == 10
    for one, other in zip(honest.tasks, poisoned.tasks, strict=True):
        assert best_over_cost(other.costs).tobytes() == best_over_cost(one.costs).tobytes()
        assert other.values.tobytes() == one.values.tobytes()
    assert report.counts == {**before.counts, "left out: cost that cannot be a run time": 10}


def test_no_label_of_real_records_changes(measured_lines, monkeypatch):
    """The labels are equal to the last bit, since no cost is left out."""
    with_rule, report = built(measured_lines)
    assert not any("cannot be a run time" in cause for cause in report.counts)
    monkeypatch.setattr(
        "tlp_service.training.dataset.is_plausible", lambda workload, costs: np.ones(len(costs), dtype=bool)
    )
    without, _ = built(measured_lines)
    assert len(with_rule.tasks) == len(without.tasks) == 10
    for one, other in zip(with_rule.tasks, without.tasks, strict=True):
        for field in ("positions", "values", "costs"):
            assert getattr(one, field).tobytes() == getattr(other, field).tobytes()
        assert best_over_cost(one.costs).tobytes() == best_over_cost(other.costs).tobytes()
