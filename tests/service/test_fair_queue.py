"""The policy by itself: no threads, and time is a number."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlp_service.errors import DeadlinePassed, QueueFull
from tlp_service.scheduling.fair_queue import FairQueue
from tlp_service.scheduling.job import Job


def job(client, size, lane="v1", deadline=None, nbytes=1, opening=0):
    return Job(client, lane, size, opening, nbytes, deadline, None)


def queue_of(*jobs, rate=1000.0, mixes=False, now=0.0):
    queue = FairQueue(10**6, 10**6, rate, mixes)
    for one in jobs:
        queue.offer(one, now)
    return queue


def served(queue, most, now=0.0):
    """Take until nothing waits; return (client, first, count) of each slice, by batch."""
    batches = []
    while batch := queue.take(most, now)[0]:
        batches.append([(part.job.client, part.first, part.count) for part in batch])
        for part in batch:
            queue.returned(part, 0)
    return batches


def test_clients_are_served_in_turn_by_slices():
    queue = queue_of(job("a", 5), job("a", 1), job("b", 3))
    assert served(queue, 2) == [
        [("b", 0, 2)], [("a", 0, 2)], [("b", 2, 1)], [("a", 2, 2)], [("a", 4, 1)], [("a", 0, 1)]
    ]  # fmt: skip
    assert (queue.waiting, queue.held_bytes, queue.clients) == (0, 0, 0)


def test_a_small_request_does_not_wait_behind_eight_large_ones():
    large = [job(f"worker-{n}", 2048) for n in range(8)]
    queue = queue_of(*large)
    for _ in range(11):  # in the middle of a turn
        queue.take(32, 0.0)
    queue.offer(job("small", 16), 0.0)
    ((part,), _) = queue.take(32, 0.0)
    assert (part.job.client, part.count) == ("small", 16)


def test_what_a_job_turns_out_to_be_waits_for_its_turn_and_is_paid_for():
    large, own, other = job("a", 10), job("a", 1), job("b", 1)
    queue = queue_of(large)
    ((part,), _) = queue.take(100, 0.0)
    queue.offer(own, 0.0)
    queue.offer(other, 0.0)
    assert not queue.returned(part, 0.1, more=50)
    assert (queue.waiting, large.left, large.is_over) == (52, 50, False)
    assert served(queue, 100) == [[("b", 0, 1)], [("a", 0, 1)], [("a", 10, 50)]]
    assert large.is_over
    assert (queue.waiting, queue.held_bytes, queue.clients) == (0, 0, 0)


def test_what_is_found_of_a_job_that_still_waits_is_added_to_it():
    queue = queue_of(job("a", 10))
    ((part,), _) = queue.take(4, 0.0)
    assert not queue.returned(part, 0, more=5)
    assert queue.waiting == 11
    assert served(queue, 100) == [[("a", 4, 11)]]


def test_nothing_is_added_to_a_job_that_was_withdrawn():
    large = job("a", 10)
    queue = queue_of(large)
    ((part,), _) = queue.take(100, 0.0)
    queue.withdraw(large)
    assert not queue.returned(part, 0, more=50)
    assert queue.is_empty
    assert queue.waiting == 0


def test_many_small_requests_of_one_client_get_no_more_than_its_share():
    queue = queue_of(job("large", 2048))
    counts = {"large": 0, "greedy": 0}
    for _ in range(40):
        queue.offer(job("greedy", 16), 0.0)
        queue.offer(job("greedy", 16), 0.0)
        ((part,), _) = queue.take(32, 0.0)
        counts[part.job.client] += part.count
        queue.returned(part, 0)
    assert counts["large"] >= 0.45 * sum(counts.values())


def test_who_was_away_is_not_paid_for_it():
    queue = queue_of(job("a", 1000), job("b", 10))
    served_to_a = 0
    while served_to_a < 500:
        ((part,), _) = queue.take(10, 0.0)
        served_to_a += part.count if part.job.client == "a" else 0
    queue.offer(job("b", 500), 0.0)
    turns = [queue.take(10, 0.0)[0][0].job.client for _ in range(20)]
    assert turns.count("a") == 10


def test_a_batch_takes_from_several_clients_but_never_from_two_lanes():
    jobs = [job("a", 3), job("b", 2, lane="v2"), job("c", 9), job("a", 2, lane="v2")]
    queue = queue_of(*jobs, mixes=True)
    assert served(queue, 8) == [
        [("b", 0, 2)], [("a", 0, 3), ("c", 0, 5)], [("a", 0, 2)], [("c", 5, 4)]
    ]  # fmt: skip


def test_a_deadline_is_looked_at_when_work_is_taken():
    early, late = job("a", 4, deadline=1.0), job("a", 4, deadline=9.0)
    queue = queue_of(early, late)
    ((part,), found) = queue.take(2, 0.5)
    assert (part.job, found) == (early, [])
    ((part,), found) = queue.take(2, 1.0)
    assert (part.job, found) == (late, [early])
    assert early.is_over
    assert queue.waiting == 2


def test_a_job_that_is_withdrawn_is_not_taken_and_its_slices_do_not_end_it():
    one, other = job("a", 4), job("a", 4)
    queue = queue_of(one, other)
    ((part,), _) = queue.take(2, 0.0)
    queue.withdraw(one)
    queue.withdraw(one)
    assert not queue.returned(part, 0)
    assert served(queue, 4) == [[("a", 0, 4)]]
    assert (queue.waiting, queue.held_bytes) == (0, 0)


def test_only_what_nobody_began_is_untouched():
    begun, waiting = job("a", 4), job("b", 4)
    queue = queue_of(begun, waiting)
    queue.take(2, 0.0)
    assert {j for j in queue.held() if not j.taken} == {waiting}


def test_the_time_for_a_job_counts_of_others_at_most_as_much_as_is_its_own():
    queue = queue_of(job("a", 3000), job("b", 500), rate=1000.0)
    later = 100.0  # what they asked for is long ago
    assert queue.seconds_for("c", 10, later) == pytest.approx((10 + 10 + 10) / 1000)
    assert queue.seconds_for("c", 1000, later) == pytest.approx((1000 + 1000 + 500) / 1000)
    assert queue.seconds_for("b", 500, later) == pytest.approx((1000 + 1000) / 1000)


def test_the_time_for_a_job_counts_what_others_will_bring_meanwhile():
    queue = queue_of(job("a", 100), rate=1000.0)
    ((part,), _) = queue.take(100, 0.0)
    # a asked for 100 candidates in the last 5 s, so for 20 a second: some 10 while 500 are scored
    assert queue.seconds_for("b", 500, 0.0) == pytest.approx((500 + 10.2) / 1000, rel=1e-4)
    assert queue.seconds_for("a", 500, 0.0) == pytest.approx(500 / 1000)
    # As long as it waits for an answer it is there, however silent; afterwards for 2 s.
    assert queue.seconds_for("b", 500, 2.5) > 0.5
    queue.returned(part, 0)
    assert queue.seconds_for("b", 500, 1.9) > 0.5
    assert queue.seconds_for("b", 500, 2.5) == pytest.approx(500 / 1000)


def test_what_is_refused_unread_is_not_expected_to_come():
    queue = queue_of(job("a", 100_000), rate=1000.0)
    before = queue.seconds_for("b", 500, 0.0)
    for n in range(50):
        with pytest.raises(QueueFull):
            queue.check(f"liar-{n}", 10**9, 1.0, 0.0)
    assert queue.seconds_for("b", 500, 0.0) == before


def test_what_would_miss_its_deadline_is_refused_at_once_with_when_to_come_back():
    queue = queue_of(job("a", 10_000), rate=1000.0)
    with pytest.raises(
        QueueFull, match=r"10000 candidates are queued, so this request would take about 10.0 s"
    ) as full:
        queue.offer(job("b", 5000, deadline=4.0), 0.0)
    assert full.value.retry_after == 10  # 1.4 * 10 s - 4 s
    with pytest.raises(QueueFull):
        queue.check("b", 5000, 4.0, 0.0)
    queue.check("b", 100, 3.0, 0.0)
    queue.offer(job("b", 100, deadline=3.0), 0.0)
    with pytest.raises(DeadlinePassed):
        queue.offer(job("c", 1, deadline=3.0), 3.0)


def test_an_empty_queue_takes_what_it_thinks_is_too_much():
    """Else a rate that was measured wrong would refuse everything, and never be measured again."""
    queue = queue_of(rate=0.001)
    huge = job("a", 10**7, deadline=1.0, nbytes=10**9)
    queue.offer(huge, 0.0)
    ((part,), _) = queue.take(10**7, 0.0)
    assert queue.returned(part, 1.0)
    assert queue.rate > 0.001


@pytest.mark.parametrize(("candidates", "nbytes", "what"), [(7, 1, "candidates"), (1, 70, "bytes")])
def test_candidates_and_bytes_are_bounded(candidates, nbytes, what):
    queue = FairQueue(max_size=10, max_bytes=100, rate=2.0)
    queue.offer(job("a", 4, nbytes=40), 0.0)
    with pytest.raises(QueueFull, match=rf"queue full: .* {what} \(limit") as full:
        queue.offer(job("b", candidates, nbytes=nbytes), 0.0)
    assert full.value.retry_after == 2
    queue.offer(job("b", 6, nbytes=60), 0.0)


def test_one_client_cannot_fill_the_queue_for_all():
    queue = FairQueue(max_size=100, max_bytes=10**6, rate=1000.0)
    queue.offer(job("greedy", 90), 0.0)
    with pytest.raises(QueueFull):
        queue.offer(job("greedy", 20), 0.0)
    queue.offer(job("small", 50), 0.0)
    with pytest.raises(QueueFull):
        queue.offer(job("small", 1), 0.0)
    queue.offer(job("third", 33), 0.0)
    with pytest.raises(QueueFull, match="would bring it to"):  # twice the bound is the end for all
        queue.offer(job("fourth", 28), 0.0)


def test_a_job_is_opened_once_and_others_are_served_meanwhile():
    queue = queue_of(job("a", 10, opening=4), rate=1000.0)
    ((opening,), _) = queue.take(2, 0.0)
    assert (opening.first, opening.count) == (0, 4 + 2)
    assert queue.take(2, 0.0) == ([], [])
    queue.offer(job("a", 1), 0.0)
    ((part,), _) = queue.take(2, 0.0)
    assert (part.job.client, part.count) == ("a", 1)  # nor do its client's others wait
    queue.offer(job("b", 2), 0.0)
    ((part,), _) = queue.take(2, 0.0)
    assert part.job.client == "b"
    assert not queue.returned(opening, 0.01)
    ((part,), _) = queue.take(2, 0.0)
    assert (part.job.client, part.first, part.count) == ("a", 6, 2)


def test_opening_counts_in_the_turn_of_its_client():
    queue = queue_of(job("a", 14, opening=8), job("b", 20))
    order = []
    while parts := queue.take(2, 0.0)[0]:
        order.append(parts[0].job.client)
        queue.returned(parts[0], 0)
    assert "".join(order) == "a" + "bbbbb" + "aba" + "bbbb"


def test_the_rate_is_that_of_the_work_and_not_of_the_slices():
    queue = queue_of(job("a", 10**5), rate=1000.0)
    for count in (100, 1) * 300:  # one alone takes as long as 20
        ((part,), _) = queue.take(count, 0.0)
        queue.returned(part, max(count, 20) / 1000)
    assert queue.rate == pytest.approx(101 / 0.12, rel=0.05)


def test_the_rate_follows_what_is_measured():
    queue = queue_of(job("a", 10**5), rate=1000.0)
    for _ in range(400):
        ((part,), _) = queue.take(100, 0.0)
        queue.returned(part, 0.05)
    assert queue.rate == pytest.approx(2000, rel=0.01)


def test_clients_that_come_and_go_leave_nothing_behind():
    queue = queue_of(job("always", 10**5))
    for n in range(5000):
        queue.offer(job(f"client-{n}", 1), 0.0)
        queue.take(1, 0.0)
        queue.take(1, 0.0)
    assert len(queue._idle) <= 1025
    assert len(queue._demands) <= 1025


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("offer"),
            st.sampled_from("abc"),
            st.integers(1, 40),
            st.sampled_from("vw"),
            st.integers(0, 20),
        ),
        st.tuples(st.just("take"), st.integers(1, 16)),
        st.tuples(st.just("return"), st.integers(0, 5)),
        st.tuples(st.just("withdraw"), st.integers(0, 20)),
        st.tuples(st.just("tick"), st.floats(0.1, 5)),
    ),
    max_size=80,
)


@pytest.mark.slow
@settings(max_examples=300)
@given(ACTIONS, st.booleans())
def test_whatever_happens_each_candidate_is_handed_out_once_or_its_job_has_ended(actions, mixes):
    queue = FairQueue(10**6, 10**6, 1e9, mixes)
    jobs, out, handed, ended, now = [], [], {}, set(), 0.0
    for action in [*actions, *[("take", 16), ("return", 0)] * 400]:
        if action[0] == "offer":
            jobs.append(
                job(*action[1:3], lane=action[3], deadline=now + 6, opening=min(action[2] - 1, action[4]))
            )
            queue.offer(jobs[-1], now)
            handed[jobs[-1]] = []
        elif action[0] == "take":
            slices, late = queue.take(action[1], now)
            being_opened = {part.job for part in out if part.first < part.job.opening}
            assert bool(slices) or bool(late) or queue.waiting == 0 or being_opened
            assert sum(p.count - (0 if p.first else p.job.opening) for p in slices) <= action[1]
            for part in slices:
                assert part.job not in being_opened
                assert part.first == 0 or part.first >= part.job.opening
            assert len({part.job.lane for part in slices}) <= 1
            assert mixes or len(slices) <= 1
            for part in slices:
                assert part.job not in ended
                handed[part.job] += range(part.first, part.first + part.count)
            out += slices
            ended.update(late)
        elif action[0] == "return" and out:
            part = out.pop(action[1] % len(out))
            if queue.returned(part, 0.01):
                assert part.job not in ended
                assert handed[part.job] == list(range(part.job.size))
                ended.add(part.job)
        elif action[0] == "withdraw" and jobs:
            one = jobs[action[1] % len(jobs)]
            queue.withdraw(one)
            ended.add(one)
        elif action[0] == "tick":
            now += action[1]
        assert queue.waiting == sum(j.left for j in jobs if j not in ended)
    for part in out:
        if queue.returned(part, 0.01):
            ended.add(part.job)
    for one in jobs:
        assert handed[one] == list(range(len(handed[one])))
        assert one in ended
        assert one.is_over
    assert (queue.waiting, queue.held_bytes, queue.clients) == (0, 0, 0)
