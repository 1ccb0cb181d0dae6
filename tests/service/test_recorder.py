"""From the stream into the record store: each record once, whatever is killed.

On the Valkey of the wheel, on Redis, and on what TLP_TEST_REDIS_URL names.
"""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from redis_servers import url_fixture
from serving import HANG_S
from stored import once, rows_of, stored
from streams import append, entries_of, send

from tlp_service.measurements import dead_letters
from tlp_service.measurements import recorder as recorder_module
from tlp_service.measurements.recorder import DEAD, GROUP, Recorder
from tlp_service.measurements.stream import SEEN, STREAM, Entry, MeasurementStream
from tlp_service.records import store as store_module
from tlp_service.records.store import RecordStore

url = url_fixture("valkey", "redis", "outside")


@pytest.fixture
def recorder(url, client, store):
    recorder = Recorder(url, store, "one")
    yield recorder
    recorder.close()


def put(store, line, mark, times=1):
    """Put a record into the store as if it had come from this text."""
    store.append([rows_of([line] * times, marks=[mark] * times)])


def test_what_is_acknowledged_to_a_worker_is_in_the_store_once_and_leaves_the_stream(
    url, client, store, recorder, measured_lines
):
    entries = [e._replace(id=f"{time.time_ns()}-{e.id}") for e in entries_of(measured_lines[:20])]
    assert append(url, entries) == list(range(20))
    assert append(url, entries) == []
    moved = recorder.step()
    assert ([entry for entry, _ in moved.records], moved.dead) == (entries, {})
    assert stored(store) == once(measured_lines[:20])
    assert client.xlen(STREAM) == 0
    assert recorder.step().records == []


def test_a_record_that_came_under_two_ids_or_in_two_batches_is_read_once(
    client, store, recorder, measured_lines
):
    for _ in range(2):
        send(client, entries_of([*measured_lines[:5], *measured_lines[:5]]))
        assert len(recorder.step().records) == 10
    assert stored(store) == once(measured_lines[:5])
    store.compact()
    assert [path.name for path in (store.folder / "platform=epyc").iterdir()] == ["records.parquet"]
    assert stored(store) == once(measured_lines[:5])


def test_entries_that_are_no_records_are_kept_apart_with_their_reasons(
    client, store, recorder, measured_lines
):
    good, *_ = entries_of(measured_lines)
    bad = [
        good._replace(record="{"),
        good._replace(record=json.dumps({"i": [], "r": [], "v": "v9"})),
        good._replace(platform="../../etc"),
        good._replace(platform=""),
    ]
    ids = send(client, [bad[0], good, *bad[1:]])
    odd = client.xadd(STREAM, {"id": "x", "record": good.record})
    moved = recorder.step()
    assert [entry for entry, _ in moved.records] == [good]
    assert list(moved.dead) == [ids[0], *ids[2:], odd]
    dead = [fields for _, fields in client.xrange(DEAD)]
    assert [d["entry"] for d in dead] == list(moved.dead)
    assert [d.get("platform") for d in dead] == ["epyc", "epyc", "../../etc", "", None]
    for letter, reason in zip(
        dead, ("JSON", "", "are a name", "are a name", "its fields are id, record"), strict=True
    ):
        assert reason in letter["reason"]
    assert client.xlen(STREAM) == 0
    assert stored(store) == once([good.record])


def test_a_record_that_cannot_be_a_row_keeps_no_other_from_the_store(
    client, store, recorder, measured_lines, monkeypatch
):
    poison = measured_lines[3]

    class Picky(recorder_module.Rows):
        def add(self, record, line, source, number):
            super().add(record, line, source, number)
            self.is_poisoned = getattr(self, "is_poisoned", False) or line.decode() == poison

        def table(self):
            if self.is_poisoned:
                raise OverflowError("too large for a row")
            return super().table()

    monkeypatch.setattr(recorder_module, "Rows", Picky)
    ids = send(client, entries_of(measured_lines[:9]))
    assert recorder.step().dead == {ids[3]: "it cannot be stored: too large for a row"}
    assert stored(store) == once([*measured_lines[:3], *measured_lines[4:9]])


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["append", "_acknowledge", "_trim"])
def test_what_was_not_finished_comes_again(url, client, store, measured_lines, monkeypatch, moment):
    """Killed before the store is written, before the acknowledgement, before the stream is cut."""
    send(client, entries_of(measured_lines[:30]))
    send(client, [entries_of(measured_lines)[0]._replace(record="{")])

    def die(*arguments):
        raise KeyboardInterrupt

    first = Recorder(url, store, "one")
    with monkeypatch.context() as patch:
        patch.setattr(store if moment == "append" else first, moment, die)
        with pytest.raises(KeyboardInterrupt):
            first.step()
    first.close()
    again = Recorder(url, RecordStore(store.folder), "one")
    again.step()
    again.step()
    again.close()
    assert stored(store) == once(measured_lines[:30])
    assert client.xlen(DEAD) == 1
    assert client.xpending(STREAM, GROUP)["pending"] == 0


def test_what_a_dead_consumer_held_is_taken_over_and_not_cut_off_before(
    url, client, store, recorder, measured_lines, monkeypatch
):
    send(client, entries_of(measured_lines[:10]))
    recorder.step()
    ids = send(client, entries_of(measured_lines[10:20]))
    client.xreadgroup(GROUP, "gone", {STREAM: ">"}, count=4)
    assert len(recorder.step().records) == 6
    assert [id_ for id_, _ in client.xrange(STREAM)] == ids  # nothing behind what is pending, nor that
    monkeypatch.setattr(recorder_module, "_CLAIM_S", 0.0)
    assert len(recorder.step().records) == 4
    assert client.xlen(STREAM) == 0
    assert stored(store) == once(measured_lines[:20])


@pytest.mark.parametrize("name", ["one", "two"], ids=["the same consumer", "another"])
def test_what_was_cut_off_before_it_was_finished_is_told_and_the_rest_goes_on(
    url, client, store, measured_lines, monkeypatch, caplog, name
):
    """redis/redis #10756 and #6199: a group goes on listing entries that were trimmed, and reads them as nil."""
    monkeypatch.setattr(recorder_module, "_CLAIM_S", 0.0)
    ids = send(client, entries_of(measured_lines[:10]))
    client.xgroup_create(STREAM, GROUP, id="0")
    client.xreadgroup(GROUP, "one", {STREAM: ">"}, count=10)
    client.xtrim(STREAM, maxlen=1, approximate=False)
    again = Recorder(url, store, name)
    moved = again.step()
    send(client, entries_of(measured_lines[10:11]))
    later = again.step()
    again.close()
    reason = "its fields are gone, not id, record, worker, platform, version"
    assert moved.dead == dict.fromkeys(ids[:9], reason)
    assert [fields["entry"] for _, fields in client.xrange(DEAD)] == ids[:9]
    assert all(
        f"entry {id_} of the measurement stream is not a valid record: {reason}" in caplog.text
        for id_ in ids[:9]
    )
    assert [entry.id for entry, _ in [*moved.records, *later.records]] == ["9", "0"]
    assert stored(store) == once(measured_lines[9:11])
    assert client.xpending(STREAM, GROUP)["pending"] == 0
    assert client.xlen(STREAM) == 0


@pytest.mark.slow
def test_what_is_stored_leaves_the_server_whose_memory_stays_flat(url, client, recorder):
    """redis/redis #6941 and #7059: XACK deletes nothing, so what was done with stayed, and memory grew without end."""
    waiting, left, used = [], [], []

    def small(number):
        task = ['["w"]', "llvm", [8, 64, 64, 0, 0, 0, 0, 0], "", 2, []]
        return json.dumps({"i": [task, [[], [["CI", 1]]]], "r": [[0.1], 0, 0.1, number], "v": "v0.6"})

    async def send_and_store():
        stream = MeasurementStream(url)
        for first in range(0, 40_000, 1000):
            numbers = range(first, first + 1000)
            await stream.append([Entry(f"flat-{n}", small(n), "w", "epyc", "base-1") for n in numbers])
            waiting.append(client.xlen(STREAM))
            assert len(recorder.step().records) == 1000
            left.append((client.xlen(STREAM), client.memory_usage(STREAM, samples=0)))
            # The ids are remembered for a week; let it be over.
            assert 0 < client.ttl(f"{SEEN}flat-{first}") <= 7 * 86_400
            client.delete(*(f"{SEEN}flat-{n}" for n in numbers))
            used.append(client.info("memory")["used_memory"])
        await stream.close()

    asyncio.run(send_and_store())
    assert waiting == [1000] * 40
    assert {length for length, _ in left} == {0}
    assert len({size for _, size in left}) == 1
    # 30,000 entries that stay are 5 MB, and 3 MB if only the group still lists them as pending.
    assert max(used[10:]) - used[9] < 1 << 20, used


def test_dead_entries_are_bounded(client, recorder, monkeypatch):
    monkeypatch.setattr(dead_letters, "_MAX_DEAD", 200)
    for _ in range(5):
        send(client, entries_of(["{"] * 200))
        assert len(recorder.step().dead) == 200
    assert 200 <= client.xlen(DEAD) < 400


def test_other_groups_keep_what_they_have_not_read(client, store, recorder, measured_lines):
    client.xgroup_create(STREAM, "other", id="0", mkstream=True)
    ids = send(client, entries_of(measured_lines[:3]))
    recorder.step()
    assert [id_ for id_, _ in client.xrange(STREAM)] == ids
    client.xgroup_destroy(STREAM, "other")


@pytest.mark.slow
def test_a_reader_finds_all_records_while_batches_are_compacted(store, measured_lines, monkeypatch):
    monkeypatch.setattr(store_module, "_MAX_PARTS", 3)
    reader = subprocess.Popen(
        [sys.executable, "-c", _READER, str(store.folder)], stdout=subprocess.PIPE, text=True
    )
    counts, count = [], 0
    reading = threading.Thread(target=lambda: counts.extend(map(int, reader.stdout)))
    reading.start()
    while len(set(counts)) <= 5:
        put(store, measured_lines[count % 200], str(count))
        count += 1
        assert reader.poll() is None
    reader.send_signal(signal.SIGINT)
    reading.join()
    reader.communicate()
    assert counts == sorted(counts)
    assert store.read("epyc", ["line"]).num_rows == count


_READER = """
import signal, sys
from pathlib import Path
from tlp_service.records.store import RecordStore
store, stopping = RecordStore(Path(sys.argv[1])), []
signal.signal(signal.SIGINT, lambda *_: stopping.append(1))
while not stopping:
    if store.platforms:
        print(store.read("epyc", ["line"]).num_rows, flush=True)
"""


def test_a_disk_that_is_full_and_a_stream_that_is_away_are_waited_for(
    client, store, recorder, measured_lines, monkeypatch, caplog
):
    monkeypatch.setattr(recorder_module, "_PAUSE_S", 0.01)
    send(client, entries_of(measured_lines[:7]))
    faults = [OSError(28, "No space left on device"), redis.ConnectionError("refused")]
    append, stopping, taken = store.append, threading.Event(), []

    def failing(batches):
        if faults:
            raise faults.pop(0)
        append(batches)

    monkeypatch.setattr(store, "append", failing)

    def take(moved):
        taken.append(len(moved.records))
        if moved.records:
            stopping.set()

    recorder.run(stopping, take)
    assert taken[-1] == 7
    assert stored(store) == once(measured_lines[:7])
    waits = [r.getMessage() for r in caplog.records if "wait in the stream" in r.getMessage()]
    assert len(waits) == 1  # however often it is tried
    assert "No space left" in waits[0]


def test_bytes_that_are_no_text_are_dead_and_nothing_else_is(url, client, store, recorder, measured_lines):
    good, *_ = entries_of(measured_lines)
    broken = client.xadd(STREAM, {**good._asdict(), "record": b"\xff\xfe"})
    odd = client.xadd(STREAM, {b"\xff": b"\xfe"})
    send(client, [good])
    moved = recorder.step()
    assert moved.dead[broken] == "it is not UTF-8"
    assert list(moved.dead) == [broken, odd]
    assert stored(store) == once([good.record])
    with redis.Redis.from_url(url) as raw:
        (_, letter), (_, odd_letter) = raw.xrange(DEAD)
    assert (letter[b"record"], odd_letter[b"\xff"]) == (b"\xff\xfe", b"\xfe")


def test_the_time_of_a_record_is_that_of_its_entry_however_late_it_is_moved(client, recorder, measured_lines):
    before = time.time()
    send(client, entries_of(measured_lines[:3]))
    after = time.time()
    time.sleep(0.3)
    assert all(before - 0.01 <= t <= after + 0.01 for t in recorder.step().times_s)


@pytest.mark.parametrize(
    "damage",
    [lambda whole: b"", lambda whole: whole[:100], lambda whole: whole[:4] + bytes(300) + whole[304:]],
)
def test_a_damaged_batch_is_set_aside_when_batches_are_compacted(
    client, store, recorder, measured_lines, monkeypatch, caplog, damage
):
    monkeypatch.setattr(store_module, "_MAX_PARTS", 3)
    for n in range(3):
        send(client, entries_of(measured_lines[n : n + 1]))
        recorder.step()
        if n == 0:
            (part,) = (store.folder / "platform=epyc").glob("part-*")
            part.write_bytes(damage(part.read_bytes()))
    assert client.xlen(STREAM) == 0
    assert stored(store) == once(measured_lines[1:3])
    assert [p.name for p in (store.folder / "platform=epyc").glob("*.damaged")] == [f"{part.name}.damaged"]
    assert "is set aside" in caplog.text


def test_signals_on_signals_stop_it_once():
    """The death of a parent of many threads comes as many signals, one in the handler of another."""
    script = """
import os, signal
from tlp_service.children import Stopping
stopping = Stopping()
stopping.listen()
for _ in range(200):
    os.kill(os.getpid(), signal.SIGTERM)
assert stopping.wait(600) and stopping.is_set()
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=HANG_S, check=False).returncode == 0


@pytest.mark.slow
def test_a_row_is_written_anew_only_as_often_as_the_rows_double(store, measured_lines, monkeypatch):
    monkeypatch.setattr(store_module, "_MAX_PARTS", 4)
    written = []
    write = pq.ParquetWriter.write_table
    monkeypatch.setattr(
        "pyarrow.parquet.ParquetWriter.write_table",
        lambda writer, rows: (written.append(len(rows)), write(writer, rows)),
    )
    for n in range(256):
        put(store, measured_lines[n % 200], str(n))
    assert len(list((store.folder / "platform=epyc").iterdir())) <= 4 + 8  # 2**8 rows
    assert 256 * 2 < sum(written) <= 256 * 8
    assert store.read("epyc", ["id"]).num_rows == 256
    store.compact()
    assert [p.name for p in (store.folder / "platform=epyc").iterdir()] == ["records.parquet"]
    assert store.read("epyc", ["id"]).num_rows == 256


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:100], lambda whole: whole[:4] + bytes(300) + whole[304:]]
)
def test_who_reads_a_damaged_file_has_it_set_aside_and_reads_the_others(
    store, measured_lines, damage, caplog
):
    for n in range(2):
        put(store, measured_lines[n], str(n))
    part = min((store.folder / "platform=epyc").iterdir())
    part.write_bytes(damage(part.read_bytes()))
    assert store.read("epyc", ["id"]).num_rows == 1
    assert f"{part.name} is damaged: " in caplog.text
    assert store.counts() == {"epyc": 1}
    (other,) = (store.folder / "platform=epyc").glob("part-*.parquet")
    other.write_bytes(b"")
    assert store.counts() == {}
    with pytest.raises(FileNotFoundError):
        store.read("epyc")
    assert sorted(p.suffix for p in (store.folder / "platform=epyc").iterdir()) == [".damaged"] * 2


def test_memory_that_is_short_damages_nothing(store, measured_lines, monkeypatch):
    put(store, measured_lines[0], "0")

    def fail(*arguments, **options):
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr("pyarrow.parquet.ParquetFile.iter_batches", fail)
    with pytest.raises(MemoryError):
        store.read("epyc")
    monkeypatch.undo()
    assert store.read("epyc", ["id"]).num_rows == 1


def test_a_record_that_comes_twice_in_a_batch_is_stored_once(store, measured_lines):
    put(store, measured_lines[0], measured_lines[0], times=2)
    assert store.counts() == {"epyc": 1}


class Stops(threading.Event):
    """Is set at the first wait, and tells how long that was to be."""

    waited = None

    def wait(self, timeout=None):
        self.waited = timeout
        self.set()
        return True


def test_after_a_batch_that_was_not_full_more_is_let_come_in(client, store, recorder, measured_lines):
    send(client, entries_of(measured_lines[:3]))
    stops = Stops()
    recorder.run(stops, lambda moved: None)
    assert stops.waited == recorder_module._GATHER_S
    assert client.xlen(STREAM) == 0


@pytest.mark.parametrize("batch", ["none", "full"])
def test_after_none_and_after_a_full_one_it_goes_on_at_once(
    client, recorder, measured_lines, monkeypatch, batch
):
    if batch == "full":
        monkeypatch.setattr(recorder_module, "_BATCH", 3)
        send(client, entries_of(measured_lines[:3]))
    stops = Stops()
    recorder.run(stops, lambda moved: stops.set())
    assert stops.waited is None


def test_a_group_of_another_name_that_is_no_text_is_borne(client, recorder, measured_lines):
    send(client, entries_of(measured_lines[:1]))
    client.xgroup_create(STREAM, b"\xff", id="0")
    recorder.step()
    assert client.xlen(STREAM) == 1  # that group has not read it
    client.xgroup_destroy(STREAM, b"\xff")
