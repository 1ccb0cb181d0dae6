from hypothesis import given
from hypothesis import strategies as st

from tlp_client.score_cache import _ENTRY_BYTES, ScoreCache


def test_scores_belong_to_their_version():
    cache = ScoreCache()
    cache.add("v1", "t", ["a", "b"], [0.1, 0.0])
    cache.add("v2", "t", ["a"], [0.7])
    assert cache.find("v1", "t", ["b", "a", "c"]) == {"b": 0.0, "a": 0.1}
    assert cache.find("v2", "t", ["b", "a", "c"]) == {"a": 0.7}
    assert cache.find("v3", "t", ["a"]) == {}


def test_scores_belong_to_their_task():
    """A text need not name its task: the same steps may be done to two workloads."""
    cache = ScoreCache()
    cache.add("v", "t1", ["a"], [0.1])
    cache.add("v", "t2", ["a"], [0.7])
    assert cache.find("v", "t1", ["a"]) == {"a": 0.1}
    assert cache.find("v", "t2", ["a"]) == {"a": 0.7}
    assert cache.find("v", "t3", ["a"]) == {}


def test_the_oldest_go_first_where_room_is_short():
    cache = ScoreCache(max_bytes=3 * (_ENTRY_BYTES + 1))
    cache.add("v", "t", ["a", "b", "c"], [1, 2, 3])
    cache.add("v", "t", ["b", "d"], [2, 4])
    assert cache.find("v", "t", "abcd") == {"b": 2, "c": 3, "d": 4}
    cache.add("v", "t", ["x" * 10_000], [5])
    assert len(cache) == 0


@given(
    st.lists(st.tuples(st.sampled_from("vw"), st.sampled_from("tu"), st.text(max_size=30), st.floats(0, 1)))
)
def test_it_never_holds_more_than_it_may_and_never_another_score(entries):
    limit = 4 * (_ENTRY_BYTES + 30)
    cache, latest = ScoreCache(limit), {}
    for version, task, line, score in entries:
        cache.add(version, task, [line], [score])
        latest[version, task, line] = score
        assert cache._bytes <= limit
        assert cache._bytes == sum(len(line) + _ENTRY_BYTES for _, _, line in cache._scores)
    for (version, task, line), score in latest.items():
        assert cache.find(version, task, [line]) in ({}, {line: score})
