import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tlp_service.families.loopnest.plan import NestPlan
from tlp_service.families.published.plan import RowPlan
from tlp_service.inference.plan import join


def plan_of(candidates, steps):
    indices = np.array([i for c in candidates for i in c], dtype=np.int64)
    return RowPlan.of(indices, np.array([len(c) for c in candidates], dtype=np.int64), steps)


def padded(candidate, steps):
    return ([1 + i for i in candidate] + [0] * steps)[:steps]


def rows_of(run):
    """The rows of each candidate of a run, as often as they count."""
    return [
        [int(p) for p, count in zip(positions, counts, strict=True) for _ in range(int(count))]
        for positions, counts in zip(run.positions, run.values, strict=True)
    ]


def test_one_run_by_hand():
    # the last candidate is cropped to 3; a network of 3 steps would pad the others with 1, 3 and 0 rows
    run = plan_of([(0, 1), (), (2, 0, 1, 5)], steps=3).run(0, 8)
    assert run.candidates.tolist() == [1, 0, 2]
    assert run.positions.tolist() == [[0, 0, 0, 0], [1, 2, 0, 0], [3, 1, 2, 0]]
    assert run.values.tolist() == [[0, 0, 0, 3], [1, 1, 0, 1], [1, 1, 1, 0]]


def test_runs_hold_candidates_of_like_length():
    plan = plan_of([[0] * 9, [0], [0] * 9, [0]], steps=10)
    first, second = plan.run(0, 2), plan.run(2, 2)
    assert (first.candidates.tolist(), first.positions.shape) == ([1, 3], (2, 2))
    assert (second.candidates.tolist(), second.positions.shape) == ([0, 2], (2, 10))


def test_joined_runs_by_hand():
    # tables of 3 and 2 rows, the padding row of each first
    joined = join([plan_of([(0, 1)], 2).run(0, 1), plan_of([(), (0,)], 2).run(0, 2)], offsets=[0, 3])
    assert joined.candidates.tolist() == [0, 1, 2]
    assert joined.positions.tolist() == [[1, 2, 0], [3, 3, 0], [4, 3, 0]]
    assert joined.values.tolist() == [[1, 1, 0], [0, 2, 0], [1, 1, 0]]


CANDIDATES = st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=20)


@given(CANDIDATES, st.integers(1, 4), st.integers(1, 7))
def test_every_candidate_is_scored_once_with_the_rows_it_would_be_padded_to(candidates, steps, chunk):
    plan = plan_of(candidates, steps)
    seen = {}
    for first in range(0, len(candidates), chunk):
        run = plan.run(first, chunk)
        assert 1 <= len(run.candidates) <= chunk
        for candidate, rows in zip(run.candidates.tolist(), rows_of(run), strict=True):
            assert candidate not in seen
            seen[candidate] = rows
    assert seen == {n: padded(c, steps) for n, c in enumerate(candidates)}


@given(CANDIDATES, CANDIDATES)
def test_a_joined_run_holds_the_candidates_of_each_with_the_rows_of_its_table(first, second):
    runs = [plan_of(candidates, 4).run(0, 20) for candidates in (first, second)]
    joined = rows_of(join(runs, offsets=[0, 100]))
    expected = rows_of(runs[0]) + [[100 + row for row in rows] for rows in rows_of(runs[1])]
    assert joined == expected


def test_nests_of_several_requests_join_each_with_its_task():
    plans = [NestPlan(np.full((n, 3), n, dtype=np.float32)) for n in (2, 4)]
    joined = join([plans[0].run(0, 2), plans[1].run(1, 2)], [0, 1])
    assert joined.candidates.tolist() == [0, 1, 2, 3]
    assert joined.positions.tolist() == [[0], [0], [1], [1]]
    assert joined.values.tolist() == [[2] * 3] * 2 + [[4] * 3] * 2
    assert plans[1].run(3, 10).candidates.tolist() == [3]
