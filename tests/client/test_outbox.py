"""The outbox over a fake connection. Its thread is real; waits are for events, not for time."""

import os
import threading

import pytest

from tlp_client.errors import Refused, Unreachable
from tlp_client.outbox import Outbox
from tlp_client.wire.measurements import MeasurementAnswer


class Service:
    """Keeps records by id; refuses as told."""

    def __init__(self):
        self.kept = {}
        self.order = []
        self.requests = []
        self.faults = []
        self.poison = set()
        self.open = threading.Event()
        self.open.set()

    def send(self, lines, *, worker, version):
        self.open.wait(10)
        self.requests.append((len(lines), version))
        if self.faults:
            raise self.faults.pop(0)
        if any(id_ in self.poison for id_, _ in lines):
            raise Refused(422, "poison", "invalid")
        new = [id_ for id_, _ in lines if id_ not in self.kept]
        self.kept.update(lines)
        self.order += new
        return MeasurementAnswer(len(new), len(lines) - len(new))


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def outbox(service):
    box = Outbox(service, "w", batch=4, first_pause_s=0.001, longest_pause_s=0.002)
    yield box
    service.open.set()
    box.close()


def letters(*numbers):
    return [(f"id-{n}", f"line {n}") for n in numbers]


def test_records_arrive_in_order_and_in_batches(outbox, service):
    service.open.clear()
    outbox.put(letters(*range(10)), "v1")
    service.open.set()
    assert outbox.flush(5)
    assert service.order == [f"id-{n}" for n in range(10)]
    assert max(count for count, _ in service.requests) == 4
    assert (outbox.acknowledged, outbox.waiting) == (10, 0)


def test_put_returns_while_the_service_hangs(outbox, service):
    service.open.clear()
    outbox.put(letters(1), None)
    outbox.put(letters(2), None)
    assert outbox.waiting == 2
    assert not outbox.flush(0.05)


def test_what_was_not_acknowledged_is_sent_again_under_the_same_ids(outbox, service):
    passing = [
        Refused(status, "x") for status in (503, 429, 404, 501, 405, 408, 400, 422)
    ]  # 422 of a proxy, say
    service.faults = [Unreachable("down"), *passing]
    outbox.put(letters(1, 2), "v1")
    assert outbox.flush(5)
    assert service.order == ["id-1", "id-2"]
    assert len(service.requests) == 10


def test_a_batch_holds_records_of_one_version(outbox, service):
    service.open.clear()
    outbox.put(letters(1), "v1")
    outbox.put(letters(2), "v2")
    service.open.set()
    assert outbox.flush(5)
    assert service.requests == [(1, "v1"), (1, "v2")]


def test_one_refused_record_does_not_hold_up_the_others(outbox, service, caplog):
    service.poison = {"id-2"}
    service.open.clear()
    outbox.put(letters(0), None)
    outbox.put(letters(1, 2, 3, 4), None)
    service.open.set()
    assert outbox.flush(5)
    assert service.order == ["id-0", "id-1", "id-3", "id-4"]
    assert (outbox.acknowledged, outbox.rejected) == (4, 1)
    assert "poison" in caplog.text


def test_a_record_that_comes_twice_is_sent_once(outbox, service):
    outbox.put(letters(1, 1, 2), None)
    assert outbox.flush(5)
    outbox.put(letters(2, 3), None)
    assert outbox.flush(5)
    assert sum(count for count, _ in service.requests) == 3


def test_the_ids_that_went_last_are_remembered(outbox, service, monkeypatch):
    monkeypatch.setattr("tlp_client.outbox._REMEMBERED_IDS", 2)
    for n in (1, 2, 3, 3, 2, 1):
        outbox.put(letters(n), None)
        assert outbox.flush(5)
    assert sum(count for count, _ in service.requests) == 4  # 1 was forgotten and is sent again


def test_beyond_its_capacity_the_oldest_are_dropped_and_counted(service, caplog):
    service.open.clear()
    box = Outbox(service, "w", capacity=3, first_pause_s=0.001)
    box.put(letters(*range(5)), None)
    assert (box.waiting, box.dropped) == (3, 2)
    service.open.set()
    assert box.flush(5)
    assert service.order[-3:] == ["id-2", "id-3", "id-4"]
    assert caplog.text.count("oldest are dropped") == 1
    box.close()


def test_a_surprise_does_not_end_the_thread(outbox, service):
    service.faults = [RuntimeError("a bug")]
    outbox._longest_pause_s = 0.01
    outbox.put(letters(1), None)
    assert outbox.flush(5)
    assert service.order == ["id-1"]


def test_a_child_of_fork_sends_its_own_records_and_none_of_its_parents(outbox, service):
    service.open.clear()
    outbox.put(letters(1), None)  # the parent's, which waits
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            service.kept.clear()
            service.open = threading.Event()
            service.open.set()
            outbox.put(letters(2), None)
            status = 0 if outbox.flush(5) and list(service.kept) == ["id-2"] else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    service.open.set()
    assert outbox.flush(5)
    assert service.order == ["id-1"]


def test_flush_of_an_empty_outbox_returns_at_once(outbox):
    assert outbox.flush(0)
