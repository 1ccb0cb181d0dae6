import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tlp_service.scoring import plan
from tlp_service.scoring.plan import blocks, plan_runs


def test_one_run_by_hand():
    # candidates: (0, 1), (), (2, 0, 1) cropped to 2; a network of 3 steps would pad them with 1, 3 and 0 rows
    (run,) = plan_runs(np.array([0, 1, 2, 0, 1]), np.array([2, 0, 3]), steps=3, chunk=8)
    assert run.candidates.tolist() == [1, 0, 2]
    assert run.positions.tolist() == [[0, 0, 0, 0], [1, 2, 0, 0], [3, 1, 2, 0]]
    assert run.counts.tolist() == [[0, 0, 0, 3], [1, 1, 0, 1], [1, 1, 1, 0]]


def test_runs_hold_candidates_of_like_length():
    lengths = np.array([9, 1, 9, 1])
    first, second = plan_runs(np.zeros(20, dtype=np.int64), lengths, steps=10, chunk=2)
    assert (first.candidates.tolist(), first.positions.shape) == ([1, 3], (2, 2))
    assert (second.candidates.tolist(), second.positions.shape) == ([0, 2], (2, 10))


def test_blocks_share_the_rows_of_their_runs(monkeypatch):
    monkeypatch.setattr(plan, "BLOCK_ROWS", 3)
    indices = np.array([4, 5, 4, 6, 0, 1])
    runs = list(plan_runs(indices, np.array([2, 2, 2]), steps=2, chunk=1))
    first, second = blocks(runs, table_rows=9)
    assert (len(first.runs), first.rows.tolist()) == (2, [0, 5, 6, 7])
    assert (len(second.runs), second.rows.tolist()) == (1, [0, 1, 2])
    for block in (first, second):
        for run in block.runs:
            np.testing.assert_array_equal(block.rows[block.place_of[run.positions]], run.positions)


def test_no_candidates_no_runs():
    assert list(plan_runs(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), steps=3, chunk=2)) == []


@given(st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=20), st.integers(1, 4), st.integers(1, 7))
def test_every_candidate_is_scored_once_with_the_rows_it_would_be_padded_to(candidates, steps, chunk):
    indices = np.array([i for c in candidates for i in c], dtype=np.int64)
    lengths = np.array([len(c) for c in candidates], dtype=np.int64)
    seen = {}
    for run in plan_runs(indices, lengths, steps, chunk):
        assert 1 <= len(run.candidates) <= chunk
        for candidate, positions, counts in zip(run.candidates, run.positions, run.counts, strict=True):
            rows = [p for p, count in zip(positions, counts, strict=True) for _ in range(int(count))]
            assert candidate not in seen
            seen[candidate] = rows
    padded = {n: ([1 + i for i in c] + [0] * steps)[:steps] for n, c in enumerate(candidates)}
    assert seen == padded
