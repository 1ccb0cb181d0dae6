import itertools

import numpy as np
import pytest

from tlp_service.ranking.ranking import pair_accuracy, random_ranking, rank_tasks, top_k_cost

COSTS = np.array([4.0, 1.0, 2.0, 8.0])


def test_the_figures_by_hand():
    scores = np.array([0.9, 0.5, 0.8, 0.1])  # chooses 4.0 first, then 2.0, then 1.0
    other_costs, other_scores = np.array([10.0, 20.0]), np.array([2.0, 1.0])  # right
    ranking = rank_tasks([(scores, COSTS), (other_scores, other_costs)])
    assert ranking.tasks == 2
    assert ranking.top1_pooled == pytest.approx((1 + 10) / (4 + 10))
    assert ranking.top1_mean == pytest.approx((1 / 4 + 1) / 2)
    assert ranking.top5_pooled == ranking.top5_mean == 1
    # of the six pairs, (4, 1), (4, 2) and (2, 1) are ordered wrongly
    assert ranking.pair_accuracy == pytest.approx((3 / 6 + 1) / 2)


def test_equal_scores_choose_the_slowest():
    assert top_k_cost(np.zeros(4), COSTS, 1) == 8
    assert top_k_cost(np.zeros(4), COSTS, 2) == 4
    assert pair_accuracy(np.zeros(4), COSTS) == 0.5


def test_pairs_of_equal_cost_do_not_count():
    assert pair_accuracy(np.array([3.0, 2.0, 1.0]), np.array([1.0, 1.0, 2.0])) == 1
    assert np.isnan(pair_accuracy(np.array([3.0, 2.0]), np.array([1.0, 1.0])))


def test_a_task_of_one_candidate_cannot_be_ranked():
    assert rank_tasks([(np.array([1.0]), np.array([1.0]))]).tasks == 0


def test_random_is_the_mean_over_all_orders():
    best = COSTS.min()
    top1 = [best / COSTS[list(o)[:1]].min() for o in itertools.permutations(range(4))]
    ranking = random_ranking([COSTS])
    assert ranking.top1_mean == pytest.approx(np.mean(top1))
    assert ranking.top1_pooled == pytest.approx(best / COSTS.mean())
    assert ranking.top5_mean == 1  # all four are among five
    assert ranking.pair_accuracy == 0.5
    six = np.array([3.0, 1.0, 5.0, 2.0, 8.0, 4.0])
    fives = [six[list(c)].min() for c in itertools.combinations(range(6), 5)]
    assert random_ranking([six]).top5_pooled == pytest.approx(1 / np.mean(fives))
