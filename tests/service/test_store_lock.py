"""Kind of fault: a wait without an end. Who holds the lock of a record store may be stopped, and never go on."""

import fcntl
import os
import signal
import subprocess
import sys
import threading

import pytest
import redis
from serving import HANG_S, until
from stored import rows_of
from streams import entries_of, send

from tlp_service.measurements.embedded import embedded_redis
from tlp_service.measurements.stream import STREAM
from tlp_service.records import store_lock
from tlp_service.records.store import RecordStore


@pytest.fixture
def store(tmp_path):
    return RecordStore.create(tmp_path / "store", max_wait_s=0.05)


@pytest.fixture
def held(store):
    """The lock, held by another process as far as locks are concerned."""
    with (store.folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def test_a_writer_gives_up_and_writes_when_the_lock_is_free(store, held, measured_lines):
    with pytest.raises(OSError, match="another process has kept the record store locked"):
        store.append([rows_of(measured_lines[:1])])
    assert store.counts() == {}
    fcntl.flock(held, fcntl.LOCK_UN)
    store.append([rows_of(measured_lines[:1])])
    assert store.counts() == {"epyc": 1}


def test_who_may_wait_for_ever_says_so(store, held, measured_lines, monkeypatch, caplog):
    monkeypatch.setattr(store_lock, "_TELL_S", 0.0)
    patient = RecordStore(store.folder)
    writing = threading.Thread(target=patient.append, args=([rows_of(measured_lines[:1])],))
    writing.start()
    until(lambda: caplog.messages)
    fcntl.flock(held, fcntl.LOCK_UN)
    writing.join(HANG_S)
    assert caplog.messages == [f"waiting for another process that writes in {store.folder}"]
    assert store.counts() == {"epyc": 1}


def test_a_damaged_file_is_passed_over_while_the_lock_is_held(store, measured_lines, caplog):
    store.append([rows_of(measured_lines[:1])])
    (part,) = (store.folder / "platform=epyc").iterdir()
    part.write_bytes(b"")
    with (store.folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert store.counts() == {}
    assert "it is skipped, since it cannot be renamed: another process" in caplog.text


@pytest.mark.slow
def test_a_recorder_says_that_it_waits_and_stops_when_told(tmp_path, store, held, measured_lines):
    with (
        embedded_redis(tmp_path / "redis") as url,
        redis.Redis.from_url(url, decode_responses=True) as client,
        (tmp_path / "log").open("w+") as log,
    ):
        send(client, entries_of(measured_lines[:1]))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TLP_")}
        environment |= {"TLP_REDIS_URL": url, "TLP_RECORDS": str(store.folder)}
        environment |= {"TLP_DATA_DIR": str(tmp_path / "data")}
        recorder = subprocess.Popen(
            [sys.executable, "-m", "tlp_service", "recorder"], stderr=log, env=environment
        )
        try:
            path = tmp_path / "log"
            until(lambda: "measurements wait in the stream: [Errno 11] another process" in path.read_text())
            recorder.send_signal(signal.SIGTERM)
            assert recorder.wait(HANG_S) == 0
        finally:
            recorder.kill()
            recorder.wait()
        assert client.xlen(STREAM) == 1
