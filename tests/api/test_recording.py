"""The server beside its recorder: measurements go into the record store, and /v1/quality tells of prediction error."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
from serving import HANG_S, children_of, start, until

from tlp_service.measurements.embedded import embedded_redis
from tlp_service.measurements.recorder import GROUP
from tlp_service.measurements.stream import QUALITY, STREAM
from tlp_service.records.reader import stored_records
from tlp_service.records.store import RecordStore

pytestmark = pytest.mark.slow


def measured(stages, speed):
    """Records of one task; the higher the stage the faster, where `speed` is 1."""
    return [
        {
            "id": f"{speed}-{stage}",
            "record": {
                "i": [['["w"]', "llvm", [2, 64, 64, 0, 0, 0, 0, 0], "", 2, []], [[], [["CI", stage]]]],
                "r": [[0.01 * float(stage) ** -speed], 0, 0.1, 1],
                "v": "v0.6",
            },
        }
        for stage in stages
    ]


def test_measurements_go_into_the_store_and_their_prediction_error_is_told(tmp_path, linear_version):
    request = {"format": 1, "worker": "w", "platform": "epyc", "version": linear_version.name}
    with start(tmp_path / "data", model=linear_version, recorder=1) as server:
        empty = json.loads(server.get("/v1/quality")[1])
        assert empty == {"time": None, "serving": None, "platforms": {}}
        assert server.post("/v1/measurements", {**request, "records": measured(range(1, 9), 1)})[0] == 200
        until(lambda: server.metric("tlp_measurement_stream_length") == 0)
        figures = until(lambda: json.loads(server.get("/v1/quality")[1])["platforms"])["epyc"][
            linear_version.name
        ]
        assert (figures["measured"], figures["pair_accuracy"], figures["serving"]) == (8, 1.0, True)
        labels = f'{{platform="epyc",version="{linear_version.name}"}}'
        assert server.metric(f"tlp_prediction_pair_accuracy{labels}") == 1.0
        assert server.metric(f"tlp_prediction_top1_regret{labels}") == 0.0
        assert server.metric(f"tlp_prediction_outlier_share{labels}") == 0.0
        assert server.metric(f"tlp_prediction_drifting{labels}") is None  # it never passed a gate
    store = RecordStore(tmp_path / "data" / "records")
    assert [(p, r.primitives[0].args) for p, r in stored_records(store)] == [
        ("epyc", (n,)) for n in range(1, 9)
    ]


def test_recorder_and_trainer_stay_behind_the_server(tmp_path, linear_version):
    with start(tmp_path / "data", model=linear_version, recorder=1, trainer=1) as server:
        found = until(lambda: (c := children_of(server.process.pid)).keys() >= {"recorder", "trainer"} and c)
        for name, behind in (("recorder", 10), ("trainer", 5)):
            pid, nice = found[name], min(19, os.getpriority(os.PRIO_PROCESS, server.process.pid) + behind)
            until(lambda pid=pid, nice=nice: os.getpriority(os.PRIO_PROCESS, pid) == nice)
            group = Path(f"/proc/{pid}/autogroup")
            if group.exists() and group.read_text():
                until(lambda group=group, nice=nice: group.read_text().endswith(f"nice {nice}\n"))


def test_an_outside_stream_has_no_recorder_unless_told(tmp_path, linear_version):
    request = {"format": 1, "worker": "w", "platform": "epyc", "records": measured(range(1, 4), 1)}
    with embedded_redis(tmp_path / "outside") as url:
        with start(tmp_path / "a", model=linear_version, redis_url=url, recorder="") as server:
            server.post("/v1/measurements", request)
            time.sleep(2)
            assert server.metric("tlp_measurement_stream_length") == 3
        with start(tmp_path / "b", model=linear_version, redis_url=url, recorder=1) as server:
            until(lambda: server.metric("tlp_measurement_stream_length") == 0)
    assert RecordStore(tmp_path / "b" / "records").platforms == ("epyc",)


@pytest.mark.parametrize(
    "told",
    [
        b"{",
        b"[]",
        b"\xff",
        b'{"platforms": {"x": {"v": {"serving": 1}}}}',
        b'{"platforms": {}, "time": "now"}',
        b'{"platforms": {}, "time": %s}' % (b"1" * 310),
        b'{"platforms": {"x": {"v": {"serving": true, "measured": %s}}}}' % (b"1" * 310),
        b'{"platforms": {"x": {"v": {"serving": true, "measured": 1, "top1_regret": %s}}}}' % (b"1" * 310),
        b'{"platforms": {"x": {"v": {"serving": true, "measured": 1, "rounds": %s}}}}' % (b"1" * 5000),
    ],
    ids=lambda told: told[:40].decode(errors="replace") + f"... {len(told)} bytes",
)
def test_what_is_no_document_of_quality_is_none(tmp_path, linear_version, told):
    with (
        embedded_redis(tmp_path / "outside") as url,
        start(tmp_path / "a", model=linear_version, redis_url=url) as server,
    ):
        with redis.Redis.from_url(url) as client:
            client.set(QUALITY, told)
        assert json.loads(server.get("/v1/quality")[1])["platforms"] == {}
        assert server.get("/metrics")[0] == 200


def test_figures_of_a_stream_that_is_away_are_not_shown(tmp_path, linear_version):
    told = {
        "time": 1.0,
        "serving": "v",
        "platforms": {"p": {"v": {"serving": True, "measured": 3, "pair_accuracy": 0.5}}},
    }
    with (
        embedded_redis(tmp_path / "outside") as url,
        start(tmp_path / "a", model=linear_version, redis_url=url) as server,
    ):
        with redis.Redis.from_url(url) as client:
            client.set(QUALITY, json.dumps(told))
        series = 'tlp_prediction_pair_accuracy{platform="p",version="v"}'
        assert server.metric(series) == 0.5
        assert server.metric("tlp_prediction_told_timestamp_seconds") == 1.0
        with redis.Redis.from_url(url) as client:
            client.config_set("maxclients", 1)
            client.client_kill_filter(skipme=True, _type="normal")
            assert server.metric(series) is None


@pytest.mark.parametrize("lost", ["flushed", "another server"])
def test_a_stream_that_comes_back_empty_is_recorded_again_at_once(tmp_path, linear_version, lost):
    """ag2ai/faststream #2611 and nexi-lab/nexus #4338: the group was gone, and nothing made it again."""
    store = tmp_path / "a" / "records"
    request = {"format": 1, "worker": "w", "platform": "epyc"}
    with (
        embedded_redis(tmp_path / "outside") as url,
        start(tmp_path / "a", model=linear_version, redis_url=url, recorder=1) as server,
    ):
        assert server.post("/v1/measurements", {**request, "records": measured(range(1, 4), 1)})[0] == 200
        until(lambda: list(store.glob("platform=*/*.parquet")))
        before = len(server.log.splitlines())
        with redis.Redis.from_url(url) as client:
            if lost == "flushed":
                client.flushall()
                client.script_flush()
            else:
                os.kill(client.info("server")["process_id"], signal.SIGKILL)
                shutil.rmtree(tmp_path / "outside" / "appendonlydir")
        more = {**request, "records": measured(range(4, 7), 1)}
        until(lambda: server.post("/v1/measurements", more)[0] == 200)
        until(lambda: len(list(stored_records(RecordStore(store)))) == 6)
        time.sleep(2)  # for more of its errors
        errors = [line for line in server.log.splitlines()[before:] if "WARNING" in line or "ERROR" in line]
        # The next measurement creates the group of a flushed stream, so the recorder does not notice.
        assert len(errors) < 10, errors
        assert errors or lost == "flushed"


def test_recorders_that_were_killed_leave_nothing_to_a_scrape(tmp_path, linear_version):
    """prometheus/client_python #275 and #568.

    Each restart added files, so scrapes grew slow and reported dead processes.

    Each of 200 recorders hears of a platform of its own, tells of it, and is killed.
    """
    line = json.dumps(measured([1], 1)[0]["record"])
    told = {"TLP_RECORDS": str(tmp_path / "records"), "TLP_MODEL": str(linear_version)}
    seen = []
    with (
        embedded_redis(tmp_path / "outside") as url,
        start(tmp_path / "a", model=linear_version, redis_url=url) as server,
        redis.Redis.from_url(url, decode_responses=True) as client,
    ):
        server.get("/metrics")  # which counts itself from then on
        for first, last in ((0, 1), (1, 200)):
            command = [sys.executable, "-c", _RECORDERS, str(first), str(last), line]
            subprocess.run(
                command, env={**os.environ, **told, "TLP_REDIS_URL": url}, timeout=HANG_S, check=True
            )
            lines = server.get("/metrics")[1].decode().splitlines()
            series = f'tlp_prediction_measured{{platform="p{last - 1}",version="{linear_version.name}"}} 1.0'
            assert [line for line in lines if line.startswith("tlp_prediction_measured{")] == [series]
            consumers = len(client.xinfo_consumers(STREAM, GROUP))
            seen.append(
                (len(lines), sorted(client.scan_iter()), consumers, list((tmp_path / "a").rglob("*")))
            )
    assert seen[1] == seen[0]
    assert len(RecordStore(tmp_path / "records").platforms) == 200


_RECORDERS = """
import os, signal, sys, time
import redis
from tlp_service.processes.recorder import record
from tlp_service.measurements.stream import QUALITY, STREAM, Entry
from tlp_service.settings import read_settings
client = redis.Redis.from_url(os.environ["TLP_REDIS_URL"])
for number in range(int(sys.argv[1]), int(sys.argv[2])):
    client.xadd(STREAM, Entry(str(number), sys.argv[3], "w", f"p{number}", "")._asdict())
    child = os.fork()
    if child == 0:
        try:
            record(read_settings())
        finally:
            os._exit(1)
    while f'"p{number}"'.encode() not in (client.get(QUALITY) or b""):
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""
