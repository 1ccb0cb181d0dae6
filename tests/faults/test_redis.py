"""Faults of the Redis behind a server, over a real socket.

It is full, evicts keys, or its consumer group is deleted.
"""

import contextlib
import json
import os
import subprocess
import sys

import pytest
import redis
from models import linear_score
from redis_servers import binaries, redis_server
from serving import HANG_S, request_of, start, until

from tlp_service.measurements.stream import GROUP, STREAM
from tlp_service.records.reader import stored_records
from tlp_service.records.store import RecordStore

pytestmark = pytest.mark.slow

SAFE = ("--appendonly", "yes", "--appendfsync", "always")
#: A recorder that starts reading at once.
RECORDER = [sys.executable, "-m", "tlp_service", "recorder"]

with_each_redis = pytest.mark.parametrize("binary", binaries().values(), ids=binaries())


def measurements(lines, numbers, version=None):
    """Return a measurement request with one record per number, each measured at a time of its own."""
    records = []
    for number in numbers:
        record = json.loads(lines[number % len(lines)])
        record["r"][3] = 1_700_000_000 + number
        records.append({"id": f"record-{number}", "record": record})
    return {"format": 1, "worker": "w", "platform": "epyc", "version": version, "records": records}


@contextlib.contextmanager
def recorder(url, data_dir):
    """Run ``tlp recorder`` on a stream and on the record store of a server."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TLP_")}
    environment |= {"TLP_REDIS_URL": url, "TLP_DATA_DIR": str(data_dir)}
    with subprocess.Popen(RECORDER, env=environment) as process:
        yield
        process.terminate()
        assert process.wait(HANG_S) == 0


@with_each_redis
def test_a_full_redis_keeps_no_server_from_scoring_and_is_emptied_by_a_recorder(
    tmp_path, linear_version, measured_lines, binary
):
    data_dir, kept = tmp_path / "data", 0
    full = ("--maxmemory", "6mb", "--maxmemory-policy", "noeviction")
    with (
        redis_server(binary, *SAFE, *full) as (url, _),
        redis.Redis.from_url(url) as client,
        start(data_dir, model=linear_version, redis_url=url) as server,
    ):
        status = 200
        while status == 200:
            request = measurements(measured_lines, range(kept, kept + 125))
            status, answer = server.post("/v1/measurements", request)
            kept += answer.get("accepted", 0)
        assert (status, answer["code"]) == (503, "not_ready")
        assert client.xlen(STREAM) == kept > 125
        until(lambda: json.loads(server.get("/health/ready")[1])["measurements"].startswith("it is full"))
        assert server.get("/health/ready")[0] == 200
        assert server.post("/v1/predict", request_of([[["CI", 3]]]))[1]["scores"] == [linear_score(3)]
        with recorder(url, data_dir):
            until(lambda: client.xlen(STREAM) == 0)
            later = measurements(measured_lines, [1_000_000])
            until(lambda: server.post("/v1/measurements", later)[0] == 200)
            until(lambda: client.xlen(STREAM) == 0)
    assert len(list(stored_records(RecordStore(data_dir / "records")))) == kept + 1


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-lru"])
def test_a_redis_that_evicts_keys_is_one_warning_at_the_start(tmp_path, linear_version, policy):
    options = (*SAFE, "--maxmemory", "6mb", "--maxmemory-policy", policy)
    with (
        redis_server(binaries()["valkey"], *options) as (url, _),
        start(tmp_path / "data", model=linear_version, redis_url=url) as server,
    ):
        until(lambda: policy in server.log)
        (warning,) = (line for line in server.log.splitlines() if "WARNING" in line)
    assert f"maxmemory-policy: expected noeviction, where maxmemory is set, got {policy}" in warning


def test_a_consumer_group_that_is_deleted_makes_nothing_count_twice(tmp_path, linear_version, measured_lines):
    """Another group keeps the entries in the stream, so a new group of the recorder gets all of them again."""

    def measured():
        platforms = json.loads(server.get("/v1/quality")[1])["platforms"]
        return {figures["measured"] for versions in platforms.values() for figures in versions.values()}

    def send(*numbers):
        request = measurements(measured_lines, numbers, linear_version.name)
        assert server.post("/v1/measurements", request)[0] == 200

    def has_read_all():
        """Return whether a group of the recorder has stored all entries."""
        groups = {found["name"]: found for found in client.xinfo_groups(STREAM)}
        own, last = groups.get(GROUP), client.xinfo_stream(STREAM)["last-generated-id"]
        return own is not None and own["last-delivered-id"] == last and own["pending"] == 0

    with (
        redis_server(binaries()["valkey"], *SAFE) as (url, _),
        redis.Redis.from_url(url, decode_responses=True) as client,
        start(tmp_path / "data", model=linear_version, redis_url=url, recorder=1) as server,
    ):
        client.xgroup_create(STREAM, "auditor", id="0", mkstream=True)
        send(*range(30))
        until(lambda: measured() == {30})
        client.xgroup_destroy(STREAM, GROUP)
        until(has_read_all)
        assert client.xlen(STREAM) == 30
        send(30)
        # The figures are computed from all entries up to the last one.
        assert until(lambda: measured() != {30} and measured()) == {31}
    assert len(list(stored_records(RecordStore(tmp_path / "data" / "records")))) == 31
