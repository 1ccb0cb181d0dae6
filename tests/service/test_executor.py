"""The scoring threads, over a network of plain numpy that can be held, broken and watched, and over a real one."""

import random
import threading
from concurrent.futures import CancelledError, wait

import numpy as np
import pytest
from models import write_linear_onnx
from serving import HANG_S

from tlp_service.errors import DeadlinePassed, NotReady, QueueFull, ScoringFailed
from tlp_service.families.published.features import PUBLISHED
from tlp_service.families.published.plan import RowPlan
from tlp_service.inference.network import OnnxNetwork
from tlp_service.inference.work import ScoringWork
from tlp_service.scheduling.executor import Executor
from tlp_service.scheduling.fair_queue import FairQueue

STEPS = 25


class Plain:
    """A network whose score is the sum of the rows; fails where a row is negative."""

    steps, row_width, encoded_bytes = STEPS, 1, 4

    def __init__(self, mixes=False):
        self.mixes = mixes
        self.may_encode = threading.Event()
        self.may_encode.set()
        self.may_run = threading.Event()
        self.may_run.set()
        self.started = threading.Semaphore(0)
        self.batches, self.encoded = [], 0

    def encode(self, rows):
        self.encoded += 1
        assert self.may_encode.wait(HANG_S)
        return rows[:, 0]

    def score(self, encoded, positions, counts):
        self.batches.append(len(positions))
        self.started.release()
        assert self.may_run.wait(HANG_S)
        if (encoded < 0).any():
            raise RuntimeError("a row is negative")
        return (encoded[positions] * counts).sum(1, dtype=np.float32)


def candidates_of(network, rows, candidates):
    """Return the work of candidates, each a list of indices into rows."""
    table = np.zeros((1 + len(rows), network.row_width), dtype=np.float32)
    table[1:, min(11, network.row_width - 1)] = rows
    indices = np.array([i for c in candidates for i in c], dtype=np.int64)
    plan = RowPlan.of(indices, np.array([len(c) for c in candidates], dtype=np.int64), STEPS)
    return ScoringWork(network, table, plan)


def sums(rows, candidates):
    return [sum(rows[i] for i in candidate) for candidate in candidates]


@pytest.fixture
def running():
    """Make executors that are closed at the end."""
    executors = []

    def start(threads=2, chunk=4, mixes=False, max_size=10**6, rate=1e6):
        queue = FairQueue(max_size, 1 << 30, rate, mixes)
        executors.append(Executor(queue, threads, chunk))
        return executors[-1]

    yield start
    for executor in executors:
        executor.close()


@pytest.fixture
def plain():
    network = Plain()
    yield network
    network.may_run.set()


@pytest.mark.parametrize("mixes", [False, True])
def test_scores_come_back_in_the_order_of_the_candidates(running, plain, mixes):
    executor = running(mixes=mixes)
    plain.mixes = mixes
    candidates = [[n % 3] * (n % 7) for n in range(50)]
    work = candidates_of(plain, [1, 10, 100], candidates)
    executor.submit(work, "a")
    assert work.future.result(HANG_S).tolist() == sums([1, 10, 100], candidates)
    assert max(plain.batches) == 4
    assert executor.waiting == 0


def test_rows_are_encoded_once_a_request(running, plain):
    executor = running(chunk=1)
    work = candidates_of(plain, [1], [[0]] * 30)
    executor.submit(work, "a")
    work.future.result(HANG_S)
    assert (plain.encoded, len(plain.batches)) == (1, 30)


def test_no_thread_waits_for_rows_that_another_encodes(running, plain):
    executor, other = running(threads=2), Plain()
    plain.may_encode.clear()
    slow, quick = candidates_of(plain, [1], [[0]] * 9), candidates_of(other, [2], [[0]])
    executor.submit(slow, "a")
    executor.submit(quick, "b")
    assert quick.future.result(HANG_S).tolist() == [2]
    plain.may_encode.set()
    assert slow.future.result(HANG_S).tolist() == [1] * 9
    assert plain.encoded == 1


def test_all_threads_work_on_one_request(running, plain):
    """After its first slice, which encodes the rows."""
    executor = running(threads=3, chunk=1)
    plain.mixes = True  # as if they were encoded
    plain.may_run.clear()
    work = candidates_of(plain, [1], [[0]] * 3)
    executor.submit(work, "a")
    assert all(plain.started.acquire(timeout=HANG_S) for _ in range(3))


def test_a_free_thread_takes_what_comes_while_others_are_busy(running, plain):
    """No thread waits for a batch to fill."""
    executor = running(threads=2, chunk=100)
    plain.may_run.clear()
    first, second = (candidates_of(plain, [1], [[0]]) for _ in range(2))
    executor.submit(first, "a")
    assert plain.started.acquire(timeout=HANG_S)
    executor.submit(second, "b")
    assert plain.started.acquire(timeout=HANG_S)
    assert plain.batches == [1, 1]


def test_a_batch_of_several_clients_scores_each_by_its_own_rows(running, plain):
    executor = running(threads=1, chunk=100, mixes=True)
    plain.mixes = True
    plain.may_run.clear()
    executor.submit(candidates_of(plain, [1], [[0]]), "first")
    plain.started.acquire(timeout=HANG_S)
    rows = {"a": [1, 2], "b": [10, 20, 30]}
    asked = {"a": [[0], [0, 1], []], "b": [[2], [0, 1, 2]]}
    works = {name: candidates_of(plain, rows[name], asked[name]) for name in rows}
    for name, work in works.items():
        executor.submit(work, name)
    plain.may_run.set()
    for name, work in works.items():
        assert work.future.result(HANG_S).tolist() == sums(rows[name], asked[name])
    assert plain.batches == [1, 5]


def test_one_that_fails_in_a_batch_with_others_fails_alone(running, plain):
    executor = running(threads=1, chunk=100, mixes=True)
    plain.mixes = True
    plain.may_run.clear()
    executor.submit(candidates_of(plain, [1], [[0]]), "first")
    plain.started.acquire(timeout=HANG_S)
    good, bad = candidates_of(plain, [2], [[0]]), candidates_of(plain, [-1], [[0]])
    executor.submit(bad, "bad")
    executor.submit(good, "good")
    plain.may_run.set()
    assert good.future.result(HANG_S).tolist() == [2]
    with pytest.raises(ScoringFailed, match="the network failed"):
        bad.future.result(HANG_S)


def test_a_failure_ends_its_request_and_no_thread(running, plain):
    executor = running(threads=1, chunk=1)
    bad, good = candidates_of(plain, [-1], [[0]] * 5), candidates_of(plain, [3], [[0]])
    executor.submit(bad, "a")
    executor.submit(good, "a")
    with pytest.raises(ScoringFailed):
        bad.future.result(HANG_S)
    assert good.future.result(HANG_S).tolist() == [3]
    assert executor.waiting == 0


def test_a_deadline_that_passes_in_the_queue(running, plain):
    executor = running(threads=1, chunk=1)
    plain.may_run.clear()
    executor.submit(candidates_of(plain, [1], [[0]]), "a")
    plain.started.acquire(timeout=HANG_S)
    late = candidates_of(plain, [1], [[0]])
    executor.submit(late, "b", deadline_s=0.01)
    threading.Event().wait(0.02)
    plain.may_run.set()
    with pytest.raises(DeadlinePassed):
        late.future.result(HANG_S)


def test_a_full_queue_refuses(running, plain):
    executor = running(threads=1, chunk=1, max_size=5)
    plain.may_run.clear()
    executor.submit(candidates_of(plain, [1], [[0]] * 3), "a")
    plain.started.acquire(timeout=HANG_S)
    executor.submit(candidates_of(plain, [1], [[0]]), "b")
    with pytest.raises(QueueFull):
        executor.submit(candidates_of(plain, [1], [[0]]), "c")


def test_draining_scores_what_has_begun_and_refuses_the_rest(running, plain):
    executor = running(threads=1, chunk=1)
    plain.may_run.clear()
    begun, waiting = (candidates_of(plain, [1], [[0]] * 3) for _ in range(2))
    executor.submit(begun, "a")
    plain.started.acquire(timeout=HANG_S)
    executor.submit(waiting, "b")
    executor.drain(seconds=HANG_S)
    with pytest.raises(NotReady):
        waiting.future.result(HANG_S)
    with pytest.raises(NotReady):
        executor.submit(candidates_of(plain, [1], [[0]]), "c")
    plain.may_run.set()
    assert begun.future.result(HANG_S).tolist() == [1, 1, 1]


@pytest.mark.parametrize("mixes", [False, True])
def test_many_clients_with_random_cancels_each_get_their_own_scores(running, tmp_path, mixes):
    """Over ONNX Runtime: each that is not cancelled gets the sums of its own rows, whatever shares its batches."""
    write_linear_onnx(tmp_path / "cpu.onnx", PUBLISHED["cpu"].width, 1.0)
    network = OnnxNetwork(tmp_path / "cpu.onnx", "cpu")
    network.mixes = mixes
    executor = running(threads=3, chunk=16, mixes=mixes)
    outcomes = []

    def client(number):
        chance = random.Random(number)
        for _ in range(30):
            rows = [chance.randrange(100) for _ in range(chance.randint(1, 20))]
            candidates = [
                [chance.randrange(len(rows)) for _ in range(chance.randrange(STEPS))]
                for _ in range(chance.choice([1, 3, 16, 17, 200]))
            ]
            work = candidates_of(network, rows, candidates)
            job = executor.submit(work, f"client-{number % 5}")
            if chance.random() < 0.3:
                work.future.cancel()
                executor.withdraw(job)
            try:
                outcomes.append(work.future.result(HANG_S).tolist() == sums(rows, candidates))
            except CancelledError:
                outcomes.append(None)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 8 * 30
    assert set(outcomes) == {True, None}
    assert executor.waiting == 0
    assert executor._queue.held_bytes == 0


def test_closing_ends_the_threads_and_refuses_what_is_left(plain):
    executor = Executor(FairQueue(100, 10**6, 1.0), 1, 1)
    plain.may_run.clear()
    work = candidates_of(plain, [1], [[0]] * 5)
    executor.submit(work, "a")
    plain.started.acquire(timeout=HANG_S)
    closing = threading.Thread(target=executor.close)
    closing.start()
    plain.may_run.set()
    closing.join()
    assert not any(thread.is_alive() for thread in executor._threads)
    with pytest.raises(NotReady):
        work.future.result(0)


def test_what_waits_for_an_opening_is_taken_when_that_is_withdrawn(running, plain):
    executor, other = running(threads=2, chunk=1), Plain()
    plain.may_encode.clear()
    first, second = candidates_of(plain, [1], [[0]] * 3), candidates_of(other, [2], [[0]])
    opened = executor.submit(first, "a")
    executor.submit(second, "a")
    assert second.future.result(HANG_S).tolist() == [2]
    executor.withdraw(opened)
    plain.may_encode.set()


def test_no_job_ends_a_thread(running, plain, monkeypatch):
    executor = running(threads=1)
    bad, good = candidates_of(plain, [1], [[0]]), candidates_of(plain, [2], [[0]])

    def no_memory():
        raise MemoryError

    monkeypatch.setattr(bad, "result", no_memory)
    executor.submit(bad, "a")
    executor.submit(good, "a")
    with pytest.raises(ScoringFailed):
        bad.future.result(HANG_S)
    assert good.future.result(HANG_S).tolist() == [2]


def test_failures_do_not_change_the_rate(running, plain):
    executor = running(rate=1000.0)
    for _ in range(50):
        bad = candidates_of(plain, [-1], [[0]])
        executor.submit(bad, "a")
        with pytest.raises(ScoringFailed):
            bad.future.result(HANG_S)
    assert executor.rate == 1000


def test_a_large_request_leaves_the_small_ones_in_between(running, plain):
    executor = running(threads=1, chunk=4)
    plain.may_run.clear()
    large = candidates_of(plain, [1], [[0]] * 400)
    executor.submit(large, "large")
    plain.started.acquire(timeout=HANG_S)
    small = [candidates_of(plain, [1], [[0]]) for _ in range(5)]
    for number, work in enumerate(small):
        executor.submit(work, f"small-{number}")
    plain.may_run.set()
    wait([work.future for work in small], timeout=HANG_S)
    large.future.result(HANG_S)
    assert plain.batches[:6] == [4, 1, 1, 1, 1, 1]
