"""Figures of prediction error never delay the storing of measurements."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis
from models import write_linear_version
from serving import HANG_S, until

from tlp_client.records import RecordParser
from tlp_service.measurements.recorder import BatchResult, Recorder
from tlp_service.measurements.stream import QUALITY, STREAM, Entry
from tlp_service.quality import reporter as reporter_module
from tlp_service.quality.reporter import QualityReporter
from tlp_service.quality.windows import Quality
from tlp_service.records.store import RecordStore


def entry(n):
    line = json.dumps(
        {
            "i": [['["w"]', "llvm", [2, 64, 64, 0, 0, 0, 0, 0], "", 2, []], [[], [["CI", n]]]],
            "r": [[1.0 / n], 0, 0.1, n],
            "v": "v0.6",
        }
    )
    return Entry(str(n), line, "host", "epyc", "")


def moved(first, last):
    records = [(e := entry(n), RecordParser().parse(e.record)) for n in range(first, last)]
    return BatchResult(records, [float(n) for n in range(first, last)])


class Blocking(Quality):
    """Figures whose scoring blocks until the test releases it."""

    def __init__(self, scorer):
        super().__init__(lambda version: scorer, lambda: "v")
        self.is_inside, self.go_on = threading.Event(), threading.Event()

    def document(self, time_s):
        self.is_inside.set()
        assert self.go_on.wait(HANG_S)
        return super().document(time_s)


@pytest.mark.slow
def test_a_score_that_takes_long_does_not_keep_measurements_from_the_store(
    url, client, tmp_path, scorer, caplog
):
    store, stopping, quality = RecordStore.create(tmp_path / "store"), threading.Event(), Blocking(scorer)
    reporter = QualityReporter(redis.Redis.from_url(url), quality)
    recorder = Recorder(url, store, "one")
    thread = threading.Thread(target=recorder.run, args=(stopping, reporter.take))
    thread.start()
    try:
        client.xadd(STREAM, entry(1)._asdict())
        assert quality.is_inside.wait(HANG_S)
        for n in range(2, 9):  # one batch each, one after the other
            client.xadd(STREAM, entry(n)._asdict())
            until(lambda n=n: store.counts().get("epyc", 0) == n)
        assert client.get(QUALITY) is None
        stopping.set()
        thread.join(HANG_S)
        assert not thread.is_alive()
        assert not reporter.close(timeout_s=0.01)  # a stop waits no longer
    finally:
        stopping.set()
        quality.go_on.set()
    reporter._thread.join(HANG_S)
    assert not reporter._thread.is_alive()
    thread.join(HANG_S)
    recorder.close()


def test_what_waits_for_the_figures_is_bounded_and_what_is_dropped_is_counted(
    url, client, scorer, monkeypatch, caplog
):
    """Ten times the bound: the oldest are dropped."""
    monkeypatch.setattr(reporter_module, "_MAX_WAITING", 20)
    quality, seconds = Blocking(scorer), [0.0]
    reporter = QualityReporter(redis.Redis.from_url(url), quality, lambda: seconds[0])
    reporter.take(moved(1, 2))
    assert quality.is_inside.wait(HANG_S)
    for first in range(2, 202, 4):
        reporter.take(moved(first, first + 4))
        assert sum(len(m.records) for m in reporter._waiting) == reporter._size <= 20
    quality.go_on.set()
    until(lambda: not reporter._waiting)
    assert [r.getMessage() for r in caplog.records] == [
        "prediction error leaves out 180 measurements: more came than can be scored"
    ]
    assert reporter.close(HANG_S)
    assert super(Blocking, quality).document(1.0)["platforms"]["epyc"]["v"]["measured"] == 21


def test_a_fault_is_a_warning_and_the_figures_go_on(url, client, scorer, caplog):
    quality, seconds = Quality(lambda version: scorer, lambda: "v"), [0.0]
    faults = [redis.ConnectionError("away"), ValueError("odd"), OSError("full")]
    document = quality.document

    def fails(time_s):
        if faults:
            raise faults.pop()
        return document(time_s)

    quality.document = fails
    reporter = QualityReporter(redis.Redis.from_url(url), quality, lambda: seconds[0])
    for n in range(1, 5):
        reporter.take(moved(n, n + 1))
        until(lambda n=n: len(faults) == max(0, 3 - n) and not reporter._waiting)
        seconds[0] += 6
    until(lambda: '"measured":4,' in (client.get(QUALITY) or ""))
    assert len(caplog.records) == 3
    assert all(r.getMessage().startswith("prediction error can't be reported") for r in caplog.records)
    assert reporter.close(HANG_S)


@pytest.mark.slow
def test_a_recorder_whose_scorer_never_returns_ends_when_it_is_asked_to(url, client, tmp_path):
    version = write_linear_version(tmp_path / "version")
    environment = {
        **os.environ,
        "TLP_RECORDS": str(tmp_path / "records"),
        "TLP_MODEL": str(version),
        "TLP_REDIS_URL": url,
    }
    with subprocess.Popen(
        [sys.executable, "-c", _HANGS, str(tmp_path / "inside")], env=environment, stderr=subprocess.PIPE
    ) as process:
        try:
            client.xadd(STREAM, entry(1)._asdict())
            until(lambda: Path(tmp_path, "inside").exists() or process.poll() is not None)
            until(lambda: client.xlen(STREAM) == 0 or process.poll() is not None)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=HANG_S)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert b"Traceback" not in errors


_HANGS = """
import sys, threading
from pathlib import Path
from tlp_service.quality import reporter as reporter_module
from tlp_service.processes.recorder import record
from tlp_service.scoring.scorer import Scorer
from tlp_service.settings import read_settings
def score(self, *arguments, **more):
    Path(sys.argv[1]).touch()
    threading.Event().wait()
Scorer.score = score
reporter_module._END_S = 0.1
sys.exit(record(read_settings()))
"""
