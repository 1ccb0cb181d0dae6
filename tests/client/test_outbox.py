"""The outbox over a fake connection, in memory and on disk. Its thread is real; waits are for events, not for time."""

import json
import os
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import HANG_S

from tlp_client.errors import BadAnswer, DeadlineExceeded, Refused, Unreachable
from tlp_client.outbox import Outbox
from tlp_client.spool import Letter, Spool
from tlp_client.wire.measurements import MeasurementAnswer


class Service:
    """Keeps records by id; refuses single records or whole requests as configured."""

    def __init__(self):
        self.kept = {}
        self.order = []
        self.requests = []
        self.faults = []
        self.poison = set()  # ids of records to reject
        self.refusals = {}  # id -> refusal of every request with that record
        self.refusal = None  # refusal of all requests
        self.open = threading.Event()
        self.open.set()

    def send(self, lines, *, worker, version):
        self.open.wait(HANG_S)
        self.requests.append((len(lines), version))
        if self.faults:
            raise self.faults.pop(0)
        if self.refusal is not None:
            raise self.refusal
        for id_, _ in lines:
            if id_ in self.refusals:
                raise self.refusals[id_]
        rejected = {place: "poison" for place, (id_, _) in enumerate(lines) if id_ in self.poison}
        good = {id_: line for id_, line in lines if id_ not in self.poison}
        new = [id_ for id_ in good if id_ not in self.kept]
        self.kept.update(good)
        self.order += new
        return MeasurementAnswer(len(new), len(good) - len(new), rejected)


@pytest.fixture
def service():
    return Service()


@pytest.fixture(params=["in memory", "on disk"])
def spool(request, tmp_path):
    return Spool(tmp_path, "http://x", None) if request.param == "on disk" else None


@pytest.fixture
def begin(service, spool):
    """Return a function that begins an outbox, which leaves nothing on disk if nothing waits."""
    boxes = []
    pauses = {"first_pause_s": 0.001, "max_pause_s": 0.002, "first_aside_s": 1e6, "max_aside_s": 1e6}

    def begin(service=service, **options):
        boxes.append(Outbox(service, "w", spool=spool, **{"batch": 4, **pauses, **options}))
        return boxes[-1]

    yield begin
    for box in boxes:
        box._connection.open.set()
        box.close()
        if box._thread is not None:
            box._thread.join(HANG_S)
        if spool is not None and not box.waiting:
            assert [path for path in spool.folder.iterdir() if path != spool.quarantine.path] == []


@pytest.fixture
def outbox(begin):
    return begin()


def letters(*numbers):
    return [(f"id-{n}", f'{{"line": {n}}}') for n in numbers]


def until(box, holds):
    """Wait until a condition on an outbox holds."""
    with box._changed:
        # Refusals do not notify the condition variable, so check periodically.
        deadline = time.monotonic() + HANG_S
        while not holds():
            assert time.monotonic() < deadline
            box._changed.wait(0.01)


def quarantined(folder):
    """Return the entries of the quarantine files in a folder."""
    (path,) = folder.glob("quarantine-*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_arrive_in_order_and_in_batches(outbox, service):
    service.open.clear()
    outbox.put(letters(*range(10)), "v1")
    service.open.set()
    assert outbox.flush(HANG_S)
    assert service.order == [f"id-{n}" for n in range(10)]
    assert max(count for count, _ in service.requests) == 4
    assert (outbox.acknowledged, outbox.waiting) == (10, 0)


def test_put_takes_no_network_and_is_on_disk_when_it_returns(begin, spool):
    threads = set()

    class Hanging(Service):
        def send(self, lines, *, worker, version):
            threads.add(threading.current_thread())
            return super().send(lines, worker=worker, version=version)

    service = Hanging()
    service.open.clear()
    box = begin(service)
    box.put(letters(*range(512)), "v1")
    box.put(letters(512), "v1")
    assert (box.waiting, box.acknowledged, service.requests) == (513, 0, [])
    assert box.folder == (None if spool is None else spool.folder)  # all of them
    assert not box.flush(0.05)
    service.open.set()
    assert box.flush(HANG_S)
    assert threading.current_thread() not in threads
    assert len(service.order) == 513


def test_what_was_not_acknowledged_is_sent_again_under_the_same_ids(outbox, service):
    passing = [
        Refused(status, "x") for status in (503, 429, 404, 501, 405, 408, 400, 422)
    ]  # 422 of a proxy, say
    service.faults = [Unreachable("down"), *passing]
    outbox.put(letters(1, 2), "v1")
    assert outbox.flush(HANG_S)
    assert sorted(service.order) == ["id-1", "id-2"]  # a refused letter is sent after the others
    assert service.faults == []
    assert outbox.rejected == 0


def test_a_batch_holds_records_of_one_version(outbox, service):
    service.open.clear()
    outbox.put(letters(1), "v1")
    outbox.put(letters(2), "v2")
    service.open.set()
    assert outbox.flush(HANG_S)
    assert service.requests == [(1, "v1"), (1, "v2")]


def test_one_rejected_record_does_not_hold_up_the_others(outbox, service, caplog):
    service.poison = {"id-2"}
    service.open.clear()
    outbox.put(letters(0), None)
    outbox.put(letters(1, 2, 3, 4), None)
    service.open.set()
    assert outbox.flush(HANG_S)
    assert service.order == ["id-0", "id-1", "id-3", "id-4"]
    assert (outbox.acknowledged, outbox.rejected) == (4, 1)
    assert "poison" in caplog.text


#: Answers to a whole request from servers of this and later releases, from proxies, and from other programs.
REFUSALS = [
    *(Refused(400, "x", code) for code in ("malformed", "content_type", "unsupported", "")),
    *(Refused(422, "x", code) for code in ("invalid", "unknown_format", "unknown_field", "of_a_later_server")),
    *(Refused(status, "<html>") for status in (401, 403, 404, 405, 409, 411, 415, 422, 429, 451, 500, 501, 502, 504,
        599)),
    Refused(413, "<html>a proxy's limit"),
    BadAnswer("of another format"),
    DeadlineExceeded("no answer"),
]  # fmt: skip


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_the_refusal_of_a_whole_request_is_no_verdict_on_its_records(outbox, spool, service, refusal):
    """Data loss at an upgrade: a server of another wire format answered 'invalid', and all letters were dropped."""
    service.refusal = refusal
    outbox.put(letters(*range(10)), "v1")
    until(outbox, lambda: len(service.requests) >= 12)
    assert (outbox.waiting, outbox.acknowledged, outbox.rejected) == (10, 0, 0)
    assert outbox.folder == (None if spool is None else spool.folder)
    service.refusal = None  # a server that accepts them
    assert outbox.flush(HANG_S)
    assert sorted(service.order) == sorted(f"id-{n}" for n in range(10))
    assert (outbox.acknowledged, outbox.rejected) == (10, 0)
    assert spool is None or not spool.quarantine.path.exists()


#: What ends the server, or this client's own request: no answer at all.
SILENCES = [
    Unreachable("closed without an answer"),
    Refused(503, "a proxy whose server died"),
    RuntimeError("a bug"),
]


@pytest.mark.parametrize("refusal", [*REFUSALS, *SILENCES], ids=str)
def test_a_letter_with_which_no_request_gets_through_waits_and_holds_up_no_other(outbox, service, refusal):
    service.refusals = {"id-2": refusal, "id-5": refusal}
    outbox.put(letters(*range(8)), "v1")
    until(outbox, lambda: outbox.waiting == 2)
    outbox.put(letters(8), "v2")
    until(outbox, lambda: outbox.acknowledged == 7)
    assert (outbox.waiting, outbox.rejected) == (2, 0)
    service.refusals = {}
    assert outbox.flush(HANG_S)
    assert sorted(service.kept) == sorted(f"id-{n}" for n in range(9))


@pytest.mark.parametrize("silence", SILENCES, ids=str)
def test_a_letter_that_ends_the_server_is_tried_ever_less_often(begin, service, silence, caplog):
    """It stayed at the head of the queue, so the server was ended again and again, and no other letter was sent."""
    service.refusals = {"id-2": silence}
    box = begin(first_pause_s=0.0001, max_pause_s=0.0002)
    box.put(letters(*range(4)), "v1")
    for n in range(4, 200):  # the search goes on
        box.put(letters(n), "v1")
        until(box, lambda n=n: f"id-{n}" in service.kept)
    until(box, lambda: box.waiting == 1)
    until(box, lambda: box._letters.has_aside)
    tries = len(service.requests)
    for n in range(200, 300):
        box.put(letters(n), "v1")
        until(box, lambda n=n: f"id-{n}" in service.kept)
    assert len(service.requests) == tries + 100
    assert caplog.text.count("it is tried again in 1000000 s") == 1
    service.refusals = {}
    assert box.flush(HANG_S)
    assert "id-2" in service.kept
    assert (box.acknowledged, box.rejected) == (300, 0)


def test_after_an_outage_letters_wait_no_longer_than_without(outbox, service):
    service.faults = [Unreachable("down")] * 40
    for n in range(12):
        outbox.put(letters(n), f"v{n % 3}")
    until(outbox, lambda: outbox.waiting == 0)  # without a flush, which recalls what was set aside
    assert outbox.acknowledged == 12


def test_a_short_outage_changes_no_order(outbox, service):
    service.faults = [Unreachable("down"), Refused(503, "starting")]
    outbox.put(letters(*range(10)), "v1")
    assert outbox.flush(HANG_S)
    assert service.order == [f"id-{n}" for n in range(10)]


def test_letters_of_a_worker_or_version_that_is_refused_hold_up_no_other(begin):
    class Choosy(Service):
        def send(self, lines, *, worker, version):
            if version == "v1":
                raise Refused(422, "version: not a name", "invalid")
            return super().send(lines, worker=worker, version=version)

    service = Choosy()
    box = begin(service)
    for n in range(6):
        box.put(letters(n), f"v{n % 2}")
    until(box, lambda: box.waiting == 3)
    assert sorted(service.order) == ["id-0", "id-2", "id-4"]


def test_a_service_that_refuses_all_is_asked_ever_less_and_one_warning_says_what_to_do(
    begin, service, caplog
):
    service.faults = [Refused(422, "format: this is wire format 2, not 1", "unknown_format")] * 12
    box = begin(batch=64)
    box.put(letters(*range(64)), None)
    assert box.flush(HANG_S)
    assert [count for count, _ in service.requests[:8]] == [64, 32, 16, 8, 4, 2, 1, 1]
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "422: format: this is wire format 2, not 1" in warning
    assert "update the older one" in warning
    # When it accepts them, the requests grow again.
    assert [count for count, _ in service.requests[12:]] == [1, 2, 4, 8, 16, 32, 1]


def test_a_request_that_is_too_large_is_halved_at_once_and_a_record_that_is_goes_to_quarantine(
    tmp_path, service
):
    class Narrow(Service):
        def send(self, lines, *, worker, version):
            if len(lines) > 2 or lines[0][0] == "id-3":
                raise Refused(413, "body: larger than 1000 bytes", "too_large")
            return super().send(lines, worker=worker, version=version)

    service = Narrow()
    spool = Spool(tmp_path, "http://x", None)
    # A pause would be noticed, since it is longer than a test may take.
    box = Outbox(service, "w", spool=spool, batch=8, first_pause_s=1000, max_pause_s=1000)
    box.put(letters(*range(3)), None)
    until(box, lambda: box.waiting == 0)
    box._first_pause_s = box._max_pause_s = 0.001
    box.put(letters(3), None)
    until(box, lambda: box.waiting == 0)
    box.close()
    assert (box.acknowledged, box.rejected) == (3, 1)
    (entry,) = quarantined(tmp_path)
    assert (entry["id"], entry["line"]) == ("id-3", '{"line": 3}')
    assert entry["reason"] == "too large for the service: body: larger than 1000 bytes"


def test_a_rejected_record_is_kept_in_quarantine_and_never_sent_again(tmp_path, service):
    service.poison = {"id-1"}
    for _ in range(2):
        spool = Spool(tmp_path, "http://x", None)
        box = Outbox(service, "w", spool=spool, first_pause_s=0.001)
        box.put(letters(0, 1, 2), "v1")
        assert box.flush(HANG_S)
        box.close()
    one, other = quarantined(tmp_path)  # it was measured twice
    assert {key: one[key] for key in ("id", "line", "version", "worker", "reason")} == {
        "id": "id-1", "line": '{"line": 1}', "version": "v1", "worker": "w", "reason": "poison",
    }  # fmt: skip
    assert one["time"] <= other["time"]
    assert Spool(tmp_path, "http://x", None).adopt(2**30) == []
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("spool", ["in memory"], indirect=True)
def test_a_rejected_record_without_a_folder_is_in_the_log(outbox, service, caplog):
    service.poison = {"id-1"}
    outbox.put(letters(1), "v1")
    assert outbox.flush(HANG_S)
    assert '"reason": "poison"' in caplog.text
    assert json.dumps('{"line": 1}') in caplog.text


def test_a_quarantine_that_cannot_be_written_is_the_log(tmp_path, service, caplog):
    service.poison = {"id-1"}
    spool = Spool(tmp_path, "http://x", None)
    spool.quarantine.path.mkdir()
    box = Outbox(service, "w", spool=spool, first_pause_s=0.001)
    box.put(letters(0, 1), "v1")
    assert box.flush(HANG_S)
    box.close()
    assert (box.acknowledged, box.rejected) == (1, 1)
    assert '"reason": "poison"' in caplog.text


@pytest.mark.parametrize(
    ("line", "worker", "version"),
    [('{"cut', "w", "v1"), ("7", "w", "v1"), ("{}", "a worker", "v1"), ("{}", "w", "\n")],
)
def test_a_letter_that_spoils_its_request_goes_to_quarantine_once_it_is_alone(
    tmp_path, service, line, worker, version
):
    """Damage on disk: no server can name the record, since it cannot read the request."""
    dead = Spool(tmp_path, "http://x", None)
    dead.add(
        [Letter("bad", line, version, worker), *(Letter(i, text, "v1", "w") for i, text in letters(1, 2))]
    )
    dead.close()
    service.refusals = {"bad": Refused(400, "body: not JSON", "malformed")}
    box = Outbox(service, "w", spool=Spool(tmp_path, "http://x", None), first_pause_s=0.001)
    assert box.flush(HANG_S)
    box.close()
    assert (sorted(service.order), box.rejected) == (["id-1", "id-2"], 1)
    assert [entry["id"] for entry in quarantined(tmp_path)] == ["bad"]


MOODS = st.one_of(
    st.sampled_from(
        [*REFUSALS, Unreachable("down"), Refused(503, "starting"), Refused(413, "x", "too_large")]
    ),
    st.sets(st.integers(0, 3)),  # positions that are rejected
)


@settings(max_examples=60, deadline=None)
@given(
    puts=st.lists(st.tuples(st.integers(1, 6), st.sampled_from(["v1", "v2", None])), min_size=1, max_size=5),
    moods=st.lists(MOODS, max_size=25),
)
def test_whatever_is_answered_each_letter_is_kept_by_the_service_or_in_quarantine(puts, moods):
    class Moody(Service):
        def send(self, lines, *, worker, version):
            mood = moods.pop(0) if moods else set()
            if isinstance(mood, Exception):
                raise mood
            self.poison = {lines[place][0] for place in mood if place < len(lines)}
            return super().send(lines, worker=worker, version=version)

    service = Moody()
    with tempfile.TemporaryDirectory() as name:
        spool = Spool(Path(name), "http://x", None)
        box = Outbox(
            service, "w", spool=spool, batch=4, first_pause_s=0.0001, max_pause_s=0.0001, exit_wait_s=0
        )
        put = 0
        for count, version in puts:
            box.put(letters(*range(put, put + count)), version)
            put += count
        assert box.flush(HANG_S)
        box.close()
        box._thread.join(HANG_S)
        lines = [line for path in Path(name).iterdir() for line in path.read_text().splitlines()]
        rest = [json.loads(line)["id"] for line in lines]
    assert sorted([*service.kept, *rest]) == sorted(f"id-{n}" for n in range(put))
    assert (box.acknowledged, box.rejected) == (len(service.kept), len(rest))


def test_a_request_is_bounded_in_bytes(outbox, service):
    lines = [(f"id-{n}", json.dumps({"x": "x" * 400_000})) for n in range(4)]
    service.open.clear()
    outbox.put(lines, None)
    service.open.set()
    assert outbox.flush(HANG_S)
    assert [count for count, _ in service.requests] == [2, 2]


def test_a_record_that_comes_twice_is_sent_once(outbox, service):
    outbox.put(letters(1, 1, 2), None)
    assert outbox.flush(HANG_S)
    outbox.put(letters(2, 3), None)
    assert outbox.flush(HANG_S)
    assert sum(count for count, _ in service.requests) == 3


def test_the_ids_that_went_last_are_remembered(outbox, service, monkeypatch):
    monkeypatch.setattr("tlp_client.outbox._MAX_REMEMBERED_IDS", 2)
    for n in (1, 2, 3, 3, 2, 1):
        outbox.put(letters(n), None)
        assert outbox.flush(HANG_S)
    assert sum(count for count, _ in service.requests) == 4  # 1 was forgotten and is sent again


def test_beyond_its_capacity_the_oldest_are_dropped_and_counted(begin, service, caplog):
    service.open.clear()
    box = begin(capacity=3)
    box.put(letters(*range(5)), None)
    assert (box.waiting, box.dropped) == (3, 2)
    service.open.set()
    assert box.flush(HANG_S)
    assert service.order[-3:] == ["id-2", "id-3", "id-4"]
    assert caplog.text.count("oldest are dropped") == 1


def test_a_surprise_does_not_end_the_thread(outbox, service):
    service.faults = [RuntimeError("a bug")]
    outbox._max_pause_s = 0.01
    outbox.put(letters(1), None)
    assert outbox.flush(HANG_S)
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
            status = 0 if outbox.flush(HANG_S) and list(service.kept) == ["id-2"] else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    service.open.set()
    assert outbox.flush(HANG_S)
    assert service.order == ["id-1"]


def test_flush_of_an_empty_outbox_returns_at_once(outbox):
    assert outbox.flush(0)
