"""Computations in steps: how much one slice does, and whose turn it is between two slices."""

import asyncio
import json
import threading

import numpy as np
import pytest
from serving import HANG_S, at_once

from tlp_client.dialects.registry import DEFAULT
from tlp_client.errors import InvalidRequest
from tlp_client.wire.predict import read_predict
from tlp_service.api import measured_body, tuning_log
from tlp_service.api.decoded import DecodeMemory
from tlp_service.api.measured_body import prepare_in_steps
from tlp_service.api.request_memory import BodyMemory, Reservation
from tlp_service.api.service import Caller
from tlp_service.api.tuning_log import groups_of, log_in_steps, read_log, request_in_steps, tasks_in_steps
from tlp_service.errors import DeadlinePassed, RequestFault
from tlp_service.inference.work import SmallTasks
from tlp_service.scheduling.executor import Executor
from tlp_service.scheduling.fair_queue import FairQueue
from tlp_service.scheduling.reading import SLICE, Reading
from tlp_service.scheduling.steps import advance, finished
from tlp_service.scoring.scorer import Scorer
from tlp_service.settings import shipped_model


def reservation() -> Reservation:
    """Return a reservation without a bound."""
    return Reservation(BodyMemory(1 << 40, DecodeMemory(1 << 40)))


def counted(costs, done, result="read"):
    """Yield these costs, and note each step when it is done."""
    for number, cost in enumerate(costs):
        yield cost
        done.append(number)
    return result


def test_steps_are_made_as_long_as_they_fit_but_at_least_one():
    done = []
    steps = counted([5, 5, 5, 100, 1], done)
    assert advance(steps, 12) == (5, None)
    assert done == [0, 1]
    assert advance(steps, 12, 5) == (100, None)
    assert done == [0, 1, 2]
    assert advance(steps, 12, 100) == (1, None)
    assert done == [0, 1, 2, 3]
    assert advance(steps, 12, 1) == (0, "read")
    assert finished(counted([1, 2, 3], done, "all")) == "all"


@pytest.fixture
def reader():
    executor = Executor(FairQueue(10**9, 10**9, 1e7, unit="bytes"), threads=1, chunk=10**9, name="read")
    yield executor
    executor.close()


class Gate:
    """Steps of one slice each, in which the thread waits for the test."""

    def __init__(self, steps, order=None, name="large"):
        self.began, self.may_go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.made, self._steps, self._order, self._name = 0, steps, order, name

    def read(self):
        for _ in range(self._steps):
            yield SLICE
            self.began.release()
            assert self.may_go_on.acquire(timeout=HANG_S)
            self.made += 1
            if self._order is not None:
                self._order.append(self._name)
        return "read"

    def let(self, steps):
        for _ in range(steps):
            self.may_go_on.release()


@pytest.mark.parametrize("client", ["large", "another"])
def test_a_small_body_is_read_between_two_slices_of_a_large_one(reader, client):
    """Also for requests of one client: one that has had a slice is queued behind one that has had none."""
    order = []
    gate = Gate(5, order)
    large, small = Reading(gate.read(), 10), Reading(at_once(lambda: order.append("small")), 10)
    reader.submit(large, "large")
    assert gate.began.acquire(timeout=HANG_S)
    reader.submit(small, client)
    gate.let(5)
    assert large.future.result(HANG_S) == "read"
    assert small.future.done()
    assert order == ["large", "small", "large", "large", "large", "large"]
    assert reader.waiting == 0


def test_two_large_bodies_share_the_thread_by_what_they_cost(reader):
    order = []
    first, second = Gate(4, order, "first"), Gate(4, order, "second")
    first.let(3), second.let(4)
    works = [Reading(gate.read(), 10) for gate in (first, second)]
    reader.submit(works[0], "first")
    reader.submit(works[1], "second")
    first.let(1)
    for work in works:
        assert work.future.result(HANG_S) == "read"
    assert order.count("first") == order.count("second") == 4
    turns = [order[:n].count("first") - order[:n].count("second") for n in range(len(order))]
    assert max(map(abs, turns[2:])) <= 2


def test_a_body_that_nobody_waits_for_is_read_no_further_than_the_slice_in_hand(reader):
    gate = Gate(1000)
    job = reader.submit(Reading(gate.read(), 10), "left")
    assert gate.began.acquire(timeout=HANG_S)
    reader.withdraw(job)
    gate.let(1000)
    last = Reading(at_once(lambda: "next"), 10)
    reader.submit(last, "another")
    assert last.future.result(HANG_S) == "next"
    assert gate.made == 1
    assert not reader.is_busy


def test_a_deadline_that_passes_while_a_body_is_read_ends_that():
    now = [0.0]
    executor = Executor(FairQueue(10**9, 10**9, 1e7), threads=1, chunk=10**9, clock=lambda: now[0])
    gate = Gate(1000)
    work = Reading(gate.read(), 10)
    executor.submit(work, "late", deadline_s=5.0)
    assert gate.began.acquire(timeout=HANG_S)
    now[0] = 6.0
    gate.let(1000)
    with pytest.raises(DeadlinePassed):
        work.future.result(HANG_S)
    executor.close()
    assert gate.made == 1


def test_a_small_body_with_much_work_does_not_hold_the_event_loop(engine):
    """A body of 16 kB blocked it for two seconds. A reader does everything beyond a few milliseconds."""
    threads = []

    def read(costs):
        for cost in costs:
            threads.append(threading.current_thread().name)
            yield cost
        return "read"

    caller, at_once = Caller("worker", None), SLICE
    here = threading.current_thread().name
    assert asyncio.run(caller.read_in_steps(engine, lambda: read([at_once // 2] * 2), 0)) == "read"
    assert threads == [here] * 2
    threads.clear()
    assert asyncio.run(caller.read_in_steps(engine, lambda: read([at_once // 2] * 9), 0)) == "read"
    # The cost of a step is known before it is done: the third is the first that does not fit.
    assert threads[:3] == [here] * 3
    assert set(threads[3:]) == {"tlp-read-0"}


def log_of(tasks, candidates=1):
    steps = json.dumps([["CI", 1], ["SP", 2, 0, 64, [4, 2, 8], 1]])
    lines = [
        f'{{"i":[["[{task}]","llvm"],[[],{steps}]],"r":[[1],0,1,1],"v":"v0.6"}}'
        for task in range(tasks)
        for _ in range(candidates)
    ]
    return "\n".join(lines).encode() + b"\n"


def test_a_log_is_read_in_steps_of_few_lines_blank_ones_too():
    body = b"\xef\xbb\xbf# a comment\n" + b"\n" * 5000 + log_of(1000) + b"{\n" + b"#\n" * 700
    costs = list(log_in_steps(body, 65536, reservation()))
    fewest = -(-(1 + 5000 + 1000 + 1 + 700) // tuning_log._STEP_LINES)
    assert fewest <= len(costs) <= fewest + len(body) // tuning_log._STEP_BYTES
    lines = read_log(body, 65536, reservation())
    assert lines.numbers == list(range(5002, 6003))
    assert (lines.outcomes[-1].number, lines.outcomes[-1].source) == (6002, "line")


def new_primitives(lines, steps=400):
    """Return lines of records all of whose primitives are others, which take longest to read."""
    return [
        json.dumps(
            {"i": [["[]", "llvm"], [[], [["CI", steps * n + k] for k in range(steps)]]], "r": [[1], 0, 1, n],
                "v": "v0.6"}
        )
        for n in range(lines)
    ]  # fmt: skip


def test_a_step_of_a_log_is_of_few_bytes_however_long_its_lines_are():
    """256 lines were a step: half a second of one, where each primitive is a new one."""
    lines = new_primitives(100)
    costs = list(log_in_steps("\n".join(lines).encode(), 65536, reservation()))
    at_once = -(-tuning_log._STEP_BYTES // len(lines[0])) + 1
    assert len(costs) >= len(lines) // at_once
    # What it took shows after a step, and the next one is the later for it.
    made = [cost - 6_000 * at_once for cost in costs[1:]]
    assert sum(made) > 100 * 400 * 100


def measured_bodies(lines):
    """Return the two bodies that lines can be measured in, and their media types."""
    records = ",".join(f'{{"id":"{n}","record":{line}}}' for n, line in enumerate(lines))
    whole = f'{{"format":1,"worker":"w","platform":"p","records":[{records}]}}'
    return [("application/json", whole.encode()), ("application/x-ndjson", "\n".join(lines).encode())]


@pytest.mark.slow
@pytest.mark.parametrize("body", [0, 1], ids=["JSON", "log"])
@pytest.mark.parametrize("is_odd", [False, True], ids=["texts", "decoded as a whole"])
def test_measurements_are_read_in_steps_between_which_nothing_is_held(body, is_odd):
    """A body of 8 MiB was one step of ten seconds, and large bodies that others sent waited for it to be decoded."""
    lines = new_primitives(150)
    kind, whole = measured_bodies(lines)[body]
    if is_odd:
        whole = whole.replace(b'"r": [[1], 0, 1, 149]', b'"r": [[NaN], 0, 1, 149]').replace(
            b'"platform":"p"', b'"platform":"p","on_invalid":"report"'
        )
    decoding = DecodeMemory(80 << 20)
    memory = Reservation(BodyMemory(80 << 20, decoding))
    query = {"worker": "w", "platform": "p", "version": None}
    manifest = Scorer(shipped_model("loopnest")).manifest
    steps = prepare_in_steps(memory, 65536, manifest, kind, whole, query)
    read, costs = [], []
    while True:
        made_before = measured_body._lines_of(DEFAULT).parser.made_bytes
        try:
            costs.append(next(steps))
        except StopIteration as end:
            prepared = end.value
            break
        assert decoding._held == 0
        read.append(measured_body._lines_of(DEFAULT).parser.made_bytes - made_before)
    assert [entry.record for entry in prepared.entries] == lines[: 150 - is_odd]
    assert [position for position, _ in prepared.errors] == [149][:is_odd]
    assert memory._bytes >= sum(map(len, lines[:130]))
    if not (is_odd and body == 0):
        assert max(read) <= 0.05 * sum(read)
    assert len(costs) >= 30


def test_an_error_in_measurements_says_what_the_whole_would():
    manifest = Scorer(shipped_model("loopnest")).manifest
    record = new_primitives(1)[0]

    def answer(body):
        with pytest.raises((RequestFault, InvalidRequest)) as caught:
            finished(prepare_in_steps(reservation(), 3, manifest, "application/json", body, {}))
        return str(caught.value)

    whole = f'{{"format":1,"worker":"w","records":[{{"id":"a","record":{record}}}]}}'.encode()
    assert answer(whole.replace(b'"a"', b'"' + b"a" * 2000 + b'"')).startswith("records[0]: id: ")
    assert answer(whole.replace(b'"a"', b"[1]")).startswith("records[0]: id: ")
    assert answer(whole.replace(b'"id"', b'"id":"b","x"')) == (
        "records[0]: the entry: unknown field 'x'; known: id, record"
    )
    assert answer(whole.replace(b"llvm", b"ll\xff")).startswith("body: not UTF-8")
    assert answer(whole[:-1]).startswith("body: not JSON")
    assert answer(whole.replace(b"llvm", b"hexagon")).startswith(
        "records[0]: neither 'platform' nor the target"
    )
    entry = whole[whole.index(b'{"id"') : -2]
    assert "4 are more than the 3" in answer(whole.replace(entry, b",".join([entry] * 4)))


def test_a_log_of_many_tasks_is_prepared_and_scored_in_groups():
    """All 17,000 tasks were prepared before the first was scored, and each was a job of its own."""
    lines, tasks = finished(tasks_in_steps(log_of(1000), 65536, reservation()))
    groups = list(groups_of(tasks))
    assert [len(group) for group in groups] == [64] * 15 + [40]
    lines, tasks = finished(tasks_in_steps(log_of(5, 3000), 65536, reservation()))
    assert [len(group) for group in groups_of(tasks)] == [1] * 5
    lines, tasks = finished(tasks_in_steps(log_of(5, 1000), 65536, reservation()))
    assert [len(group) for group in groups_of(tasks)] == [2, 2, 1]
    assert sum(1 for _ in request_in_steps(lines, tasks[0], None, None)) == 2  # of 512 candidates each


@pytest.mark.parametrize("model", ["loopnest", "published"])
def test_tasks_that_are_prepared_and_scored_together_have_the_scores_that_each_has_alone(
    model, measured_lines
):
    scorer = Scorer(shipped_model(model))
    body = "\n".join(measured_lines).encode()
    lines, tasks = finished(tasks_in_steps(body, 65536, reservation()))
    requests = [finished(request_in_steps(lines, task, None, None)) for task in tasks]
    together = finished(scorer.prepare_all_in_steps(requests))
    work = SmallTasks([prepared.candidates for prepared in together])
    assert work.size == sum(7 + prepared.candidates.size for prepared in together)
    for prepared in together:
        prepared.candidates._raw[:] = np.nan
    done = []
    for first in range(0, work.size, 10):
        work.run(first, 10)
        done.append(sum(np.isfinite(prepared.candidates._raw).all() for prepared in together))
    assert sorted(set(done)) == list(range(12))  # task by task, each when all of its units are taken
    raw = work.result()
    assert len(raw) == len(tasks) == 11
    for prepared, request, scores in zip(together, requests, raw, strict=True):
        alone = scorer.prepare(request).candidates
        alone.run(0, alone.size)
        assert (alone.result() == scores).all()
        assert prepared.network == scorer.prepare(request).network


def test_what_cannot_be_prepared_stands_in_its_place():
    scorer = Scorer(shipped_model("loopnest"))
    requests = [
        read_predict({"format": 1, "task": {"workload_key": "[]", "target": target}, "candidates": [[["CI", 1]]]})
        for target in ("llvm", "hexagon", "llvm")
    ]  # fmt: skip
    first, error, last = finished(scorer.prepare_all_in_steps(requests))
    assert "neither 'platform' nor the target" in str(error)
    assert (first.candidates.plan.nests == last.candidates.plan.nests).all()
