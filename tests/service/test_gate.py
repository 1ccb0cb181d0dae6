"""The gate: what may serve, by figures made up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlp_service.evaluation.figures import figures_of
from tlp_service.learning.gate import judge

COSTS = np.linspace(1.0, 2.0, 20)


def figures(skills, platform="p", seed=0):
    """One task a skill: scores that are the speeds, with the more noise the smaller the skill."""
    random = np.random.default_rng(seed)
    return [
        figures_of(platform, f"w{n}", skill * -COSTS + (1 - skill) * random.normal(size=len(COSTS)), COSTS)
        for n, skill in enumerate(skills)
    ]


def test_a_better_version_is_accepted_with_its_figures():
    verdict = judge(figures([0.3] * 20), figures([0.9] * 20, seed=1))
    assert verdict.is_accepted
    pairs, top1 = verdict.comparisons
    assert (pairs.platform, pairs.measure, pairs.tasks, top1.measure) == ("p", "pair_accuracy", 20, "top1")
    assert 0.5 < pairs.serving < pairs.candidate <= 1
    assert 0 < pairs.low < pairs.candidate - pairs.serving < pairs.high
    assert verdict.reason.startswith("better: p pairs 0.9")


def test_a_worse_one_is_not():
    verdict = judge(figures([0.9] * 20), figures([0.3] * 20, seed=1))
    assert not verdict.is_accepted
    assert verdict.reason.startswith("worse: p pairs")


def test_the_same_and_one_that_differs_by_chance_are_not():
    same = figures([0.5] * 30)
    assert judge(same, same).reason == "not better than chance on any platform"
    verdicts = [judge(figures([0.5] * 30, seed=n), figures([0.5] * 30, seed=n + 100)) for n in range(40)]
    # One in forty by chance, or a little more; the bootstrap is a little too sure of itself.
    assert sum(v.is_accepted for v in verdicts) <= 3


def test_better_on_one_platform_and_worse_on_another_is_refused():
    serving = figures([0.3] * 20, "new") + figures([0.9] * 20, "old", seed=2)
    candidate = figures([0.9] * 20, "new", seed=3) + figures([0.5] * 20, "old", seed=4)
    verdict = judge(serving, candidate)
    assert not verdict.is_accepted
    assert "old" in verdict.reason
    assert "new" not in verdict.reason
    assert [c.platform for c in verdict.comparisons] == ["new", "new", "old", "old"]


def test_few_tasks_can_condemn_but_not_commend():
    few = figures([0.9] * 4, "few")
    more = figures([0.3] * 20, "more", seed=1), figures([0.9] * 20, "more", seed=2)
    assert not judge(figures([0.3] * 4, "few", seed=3), few).is_accepted
    assert judge(few + more[0], few + more[1]).is_accepted
    assert not judge(few + more[0], figures([0.2] * 4, "few", seed=4) + more[1]).is_accepted


def test_a_task_without_scores_condemns_and_one_without_pairs_does_not_count():
    serving, candidate = figures([0.3] * 20), figures([0.9] * 20, seed=1)
    verdict = judge(serving, candidate[1:])
    assert (verdict.is_accepted, verdict.reason) == (False, "it has no finite scores for 1 tasks, as w0 on p")
    with np.errstate(all="ignore"):
        equal = figures_of("p", "equal", np.arange(20.0), np.ones(20))
    assert judge([*serving, equal], [*candidate, equal]).comparisons[0].tasks == 20


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=12), st.lists(st.floats(0, 1), min_size=12, max_size=12)
)
def test_what_is_accepted_is_worse_nowhere(before, after):
    verdict = judge(figures(before), figures(after[: len(before)], seed=1))
    if verdict.is_accepted:
        assert any(c.candidate > c.serving for c in verdict.comparisons)
        assert all(c.high >= 0 for c in verdict.comparisons)


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_tasks_does_not_matter(order):
    serving, candidate = figures([0.3] * 9), figures([0.8] * 9, seed=1)
    assert judge(serving, candidate[::order]).is_accepted
