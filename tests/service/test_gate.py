"""The gate: what may serve, by scores made up."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlp_service.learning.gate import HeldBack, judge
from tlp_service.ranking.figures import figures_of


def held_back(before, after, tasks=20, platform="p", seed=0, candidates=24):
    """Tasks scored by two versions: scores that are the speeds, with the more noise the smaller the skill."""
    random = np.random.default_rng(seed)
    found = []
    for n in range(tasks):
        costs = random.uniform(1.0, 2.0, candidates)
        scores = [skill * -costs + (1 - skill) * random.normal(size=candidates) for skill in (before, after)]
        found.append(HeldBack(platform, f"w{n}", costs, *scores))
    return found


def test_a_better_version_is_accepted_with_its_figures():
    tasks = held_back(0.3, 0.9)
    verdict = judge(tasks)
    assert verdict.is_accepted
    pairs, top1 = verdict.comparisons
    assert (pairs.platform, pairs.measure, pairs.tasks, top1.measure) == ("p", "pair_accuracy", 20, "top1")
    by_hand = [figures_of("p", t.workload, t.candidate, t.costs) for t in tasks]
    assert pairs.candidate == pytest.approx(np.mean([f.pair_accuracy for f in by_hand]))
    assert top1.candidate == pytest.approx(np.mean([f.best_s / f.top1_s for f in by_hand]))
    assert 0 < pairs.low < pairs.candidate - pairs.serving < pairs.high
    assert verdict.reason.startswith(f"better: p pairs {pairs.candidate:.3f}, serving {pairs.serving:.3f} (+")


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [20, 2, 1])
def test_a_worse_one_is_not_and_two_tasks_are_enough_to_tell(tasks):
    verdict = judge(held_back(0.9, 0.3, tasks, candidates=48))
    assert not verdict.is_accepted
    assert verdict.reason.startswith("worse: p pairs")
    assert judge(held_back(0.3, 0.9, tasks, candidates=48)).is_accepted


@pytest.mark.slow
def test_the_same_and_one_that_differs_by_chance_are_not():
    tasks = held_back(0.5, 0.5)
    same = [dataclasses.replace(task, candidate=task.serving) for task in tasks]
    assert judge(same).reason == "not better than chance on any platform"
    verdicts = [judge(held_back(0.5, 0.5, seed=n), seed=n) for n in range(40)]
    # One in forty by chance, or a little more; the bootstrap is a little too sure of itself.
    assert sum(v.is_accepted for v in verdicts) <= 3


def test_a_better_first_choice_alone_is_not_enough():
    found = []
    for task in held_back(0.5, 0.5):
        order = np.argsort(task.costs)
        serving, candidate = -task.costs, -task.costs.copy()
        for scores, (a, b) in ((serving, order[:2]), (candidate, order[-2:])):
            scores[[a, b]] = scores[[b, a]]
        found.append(dataclasses.replace(task, serving=serving, candidate=candidate))
    verdict = judge(found)
    pairs, top1 = verdict.comparisons
    assert pairs.candidate == pairs.serving
    assert top1.low > 0
    assert not verdict.is_accepted


def test_better_on_one_platform_and_worse_on_another_is_refused():
    verdict = judge(held_back(0.3, 0.9, platform="new") + held_back(0.9, 0.5, platform="old", seed=1))
    assert not verdict.is_accepted
    assert "old" in verdict.reason
    assert "new" not in verdict.reason
    assert [c.platform for c in verdict.comparisons] == ["new", "new", "old", "old"]


def test_a_score_that_is_not_finite_condemns():
    tasks = held_back(0.3, 0.9)
    tasks[3].candidate[5] = np.nan
    assert judge(tasks).reason == "a score that is not finite, of w3 on p"


def test_tasks_that_show_nothing_do_not_count():
    equal = HeldBack("p", "equal", np.ones(20), np.arange(20.0), np.arange(20.0))
    one = HeldBack("q", "one", np.ones(1), np.ones(1), np.ones(1))
    unscored = HeldBack("p", "unscored", np.arange(1.0, 21.0), np.full(20, np.nan), np.arange(20.0))
    assert judge([*held_back(0.3, 0.9), equal, one, unscored]).comparisons[0].tasks == 20
    assert judge([equal, one]).reason == "nothing is held back that could show a difference"


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 8), st.integers(2, 40))
def test_what_is_accepted_is_worse_nowhere(before, after, tasks, candidates):
    held = held_back(before, after, tasks, candidates=candidates) + held_back(0.5, 0.5, 6, "old", 1)
    verdict = judge(held)
    assert judge(held) == verdict
    if verdict.is_accepted:
        assert any(c.candidate > c.serving for c in verdict.comparisons)
        assert all(c.high >= 0 for c in verdict.comparisons)
