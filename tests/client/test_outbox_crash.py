"""Outboxes with files: processes that are killed, and those that come after them."""

import contextlib
import os
import signal
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import HANG_S
from test_outbox import Service, letters

from tlp_client.errors import Unreachable
from tlp_client.outbox import Outbox
from tlp_client.spool import Letter, Spool
from tlp_client.wire.measurements import MeasurementAnswer

URL = "http://cost-model:8000"


class Down:
    """A service that acknowledges so many records and then is gone."""

    def __init__(self, records=0):
        self.left = records

    def send(self, lines, *, worker, version):
        if self.left < len(lines):
            raise Unreachable("down")
        self.left -= len(lines)
        return MeasurementAnswer(len(lines), 0)


def outbox_in(folder, service, worker="w", url=URL, **options):
    pauses = {"first_pause_s": 0.001, "max_pause_s": 0.002, "exit_wait_s": 0}
    return Outbox(service, worker, spool=Spool(folder, url, None), **pauses, **options)


@contextlib.contextmanager
def child(run):
    """Fork a child that runs something, tells its result as text, and waits; it is killed at the end."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, str(run()).encode() or b" ")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading, "rb", buffering=0) as pipe:
        try:
            yield lambda: pipe.read(1000).decode()
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def kill_after_put(folder, *numbers, acknowledged=0, worker="dead"):
    """Have a process take records over, get some acknowledged, and be killed."""

    def run():
        box = outbox_in(folder, Down(acknowledged), worker, batch=2)
        box.put(letters(*numbers), "v1")
        with box._changed:
            assert box._changed.wait_for(lambda: box.acknowledged == acknowledged, HANG_S)
        return "put"

    with child(run) as told:
        assert told() == "put"


def ids(*numbers):
    return [f"id-{n}" for n in numbers]


def test_what_a_killed_process_held_is_sent_by_the_next_once_and_in_order(tmp_path):
    kill_after_put(tmp_path, *range(10))
    service = Service()
    box = outbox_in(tmp_path, service, batch=4)
    box.put(letters(10), "v1")
    assert box.flush(HANG_S)
    box.close()
    assert service.order == ids(*range(11))
    assert service.kept["id-3"] == '{"line": 3}'
    assert sum(count for count, _ in service.requests) == 11
    assert list(tmp_path.iterdir()) == []
    assert outbox_in(tmp_path, service).waiting == 0


def test_what_was_acknowledged_before_the_kill_is_not_sent_again(tmp_path):
    kill_after_put(tmp_path, *range(6), acknowledged=4)
    service = Service()
    box = outbox_in(tmp_path, service)
    assert box.flush(HANG_S)
    box.close()
    assert service.order == ids(4, 5)


def test_records_are_sent_under_the_name_of_the_worker_that_measured_them(tmp_path):
    kill_after_put(tmp_path, 1, worker="dead")
    workers = []

    class Names(Service):
        def send(self, lines, *, worker, version):
            workers.append((worker, version, len(lines)))
            return super().send(lines, worker=worker, version=version)

    service = Names()
    service.open.clear()
    box = outbox_in(tmp_path, service, worker="heir")
    box.put(letters(1, 2), "v1")  # 1 waits already
    service.open.set()
    assert box.flush(HANG_S)
    box.close()
    assert workers == [("dead", "v1", 1), ("heir", "v1", 1)]


def test_killed_again_and_again_while_the_service_is_down(tmp_path):
    for n in range(4):
        kill_after_put(tmp_path, 2 * n, 2 * n + 1)
        assert len(list(tmp_path.iterdir())) == 1
    service = Service()
    box = outbox_in(tmp_path, service)
    assert box.flush(HANG_S)
    box.close()
    assert service.order == ids(*range(8))


def test_another_services_letters_stay_where_they_are(tmp_path):
    kill_after_put(tmp_path, 1)
    service = Service()
    other = outbox_in(tmp_path, service, url="http://other:8000")
    other.put(letters(2), None)
    assert other.flush(HANG_S)
    other.close()
    assert service.order == ids(2)
    assert len(list(tmp_path.iterdir())) == 1


def test_of_two_processes_that_start_at_once_one_adopts_each_file(tmp_path):
    for round_ in range(5):
        for n in range(round_ * 8, round_ * 8 + 8, 2):
            dead = Spool(tmp_path, URL, None)
            dead.add([Letter(id_, line, None, "dead") for id_, line in letters(n, n + 1)])
            dead.close()
        go_reading, go_writing = os.pipe()

        def start(go=go_reading):
            os.read(go, 1)
            service = Service()
            box = outbox_in(tmp_path, service)
            return " ".join(service.order) if box.flush(HANG_S) else "late"

        with child(start) as first, child(start) as second:
            os.write(go_writing, b"gg")
            sent = [first().split(), second().split()]
        os.close(go_reading)
        os.close(go_writing)
        assert sorted(sent[0] + sent[1]) == sorted(ids(*range(round_ * 8, round_ * 8 + 8)))
        for of_one in sent:
            assert of_one == sorted(of_one, key=lambda id_: int(id_[3:]))
        assert list(tmp_path.iterdir()) == []


def test_a_child_of_fork_has_a_file_of_its_own_and_its_parent_keeps_its_lock(tmp_path):
    parent = outbox_in(tmp_path, Down())
    parent.put(letters(1), None)
    (parents_file,) = tmp_path.iterdir()
    content = parents_file.read_bytes()

    def run():
        parent.put(letters(2), None)
        return len(list(tmp_path.iterdir()))

    with child(run) as told:
        assert told() == "2"
    assert parents_file.read_bytes() == content
    service = Service()
    heir = outbox_in(tmp_path, service)
    assert heir.flush(HANG_S)
    heir.close()
    assert service.order == ids(2)  # the child's; the parent lives
    parent.put(letters(3), None)
    parent.close()
    parent._thread.join(HANG_S)
    last = outbox_in(tmp_path, service)
    assert last.flush(HANG_S)
    last.close()
    assert service.order == ids(2, 1, 3)


def test_a_child_that_outlives_its_parent_does_not_hold_the_parents_lock(tmp_path):
    def run():
        box = outbox_in(tmp_path, Down())
        box.put(letters(1), None)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writing, b"1")
            signal.pause()
        os.read(reading, 1)  # it runs, so it has let go
        return pid

    with child(run) as told:
        grandchild = int(told())
    try:
        heir = outbox_in(tmp_path, Down())
        assert heir.waiting == 1
        heir.close()
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_a_batch_on_its_way_while_the_outbox_closes_is_not_adopted(tmp_path):
    arrived = threading.Event()

    class Slow(Service):
        def send(self, lines, *, worker, version):
            arrived.set()
            return super().send(lines, worker=worker, version=version)

    service = Slow()
    service.open.clear()
    box = outbox_in(tmp_path, service)
    box.put(letters(1), None)
    assert arrived.wait(HANG_S)
    box.close()
    assert outbox_in(tmp_path, Down()).waiting == 0
    service.open.set()
    box._thread.join(HANG_S)
    assert (box.acknowledged, list(tmp_path.iterdir())) == (1, [])


def test_a_closed_outbox_leaves_what_waits_to_the_next(tmp_path):
    box = outbox_in(tmp_path, Down())
    box.put(letters(1, 2), None)
    box.close()
    box._thread.join(HANG_S)
    service = Service()
    heir = outbox_in(tmp_path, service)
    assert heir.flush(HANG_S)
    heir.close()
    assert service.order == ids(1, 2)


def test_where_the_folder_cannot_be_written_records_are_sent_from_memory(tmp_path, caplog):
    (tmp_path / "file").touch()
    service = Service()
    box = outbox_in(tmp_path / "file" / "outbox", service)
    service.open.clear()
    box.put(letters(1), None)
    box.put(letters(2), None)
    assert box.folder is None
    service.open.set()
    assert box.flush(HANG_S)
    box.close()
    assert service.order == ids(1, 2)
    assert len(caplog.records) == 1


def test_beyond_its_capacity_the_oldest_go_from_the_file_too(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("tlp_client.spool._SLACK_BYTES", 0)
    lines = [(f"id-{n}", "x" * 100) for n in range(1000)]
    box = outbox_in(tmp_path, Down(), capacity_bytes=1000)
    for line in lines:
        box.put([line], None)
    (path,) = tmp_path.iterdir()
    assert (box.waiting, box.dropped) == (10, 990)
    assert path.stat().st_size < 6000
    assert caplog.text.count("oldest are dropped") == 1
    box.close()
    box._thread.join(HANG_S)
    service = Service()
    heir = outbox_in(tmp_path, service)
    assert heir.flush(HANG_S)
    heir.close()
    assert service.order == ids(*range(990, 1000))


def test_adopted_letters_beyond_the_capacity_are_dropped_and_counted(tmp_path):
    kill_after_put(tmp_path, *range(5))
    box = outbox_in(tmp_path, Down(), capacity=3)
    assert (box.waiting, box.dropped) == (3, 2)
    box.close()


class OneByOne:
    """Acknowledges as many requests as it is told, until its worker dies."""

    def __init__(self, acknowledged):
        self.acknowledged = acknowledged
        self.permits = threading.Semaphore(0)
        self.is_dead = False

    def send(self, lines, *, worker, version):
        self.permits.acquire()
        if self.is_dead:
            raise Unreachable("the worker is dead")
        self.acknowledged += [id_ for id_, _ in lines]
        return MeasurementAnswer(len(lines), 0)


def acknowledge(box, service):
    before = box.acknowledged
    if box.waiting:
        service.permits.release()
        with box._changed:
            assert box._changed.wait_for(lambda: box.acknowledged > before, HANG_S)


def crash(box, service, folder, cut):
    """End an outbox as a kill does, in the middle of writing a further letter if `cut`."""
    with box._changed:
        box._spool.close()
    service.is_dead = True
    box.close()
    service.permits.release()
    if box._thread is not None:
        box._thread.join(HANG_S)
    for path in folder.iterdir():
        with path.open("ab") as file:
            file.write(b'{"id": "id-7", "line": "{}", "ver'[:cut])


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.one_of(st.integers(0, 4), st.sampled_from(["acknowledge", "crash"])), max_size=30),
    cuts=st.lists(st.integers(0, 32), min_size=30, max_size=30),
    capacity=st.sampled_from([3, 1000]),
)
def test_whatever_happens_nothing_is_lost_but_what_was_dropped_and_counted(steps, cuts, capacity):
    """A number is a put of so many records."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tlp_client.spool._SLACK_BYTES", 0)
        folder, acknowledged, put, dropped = Path(name), [], 0, 0
        service = OneByOne(acknowledged)
        box = outbox_in(folder, service, batch=2, capacity=capacity)
        for step, cut in zip([*steps, "crash"], [*cuts, 0], strict=False):
            if step == "acknowledge":
                acknowledge(box, service)
            elif step == "crash":
                crash(box, service, folder, cut)
                dropped += box.dropped
                service = OneByOne(acknowledged)
                box = outbox_in(folder, service, batch=2, capacity=capacity)
            else:
                box.put(letters(*range(put, put + step)), None)
                put += step
        service.permits.release(1000)
        assert box.flush(HANG_S)
        box.close()
        dropped += box.dropped
        numbers = [int(id_.removeprefix("id-")) for id_ in acknowledged]
        assert numbers == sorted(set(numbers))
        assert put - len(numbers) <= dropped
        assert list(folder.iterdir()) == []
