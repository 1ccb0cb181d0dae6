"""/health/ready checks scores, and /health/measurements checks with a real write."""

import asyncio
import json
import signal
from types import SimpleNamespace

import pytest
import redis
from redis_servers import binaries, redis_server
from serving import start, until

from tlp_service.api import documents, status
from tlp_service.errors import NotReady
from tlp_service.measurements.stream import PROBE, STREAM
from tlp_service.scheduling.executor import Executor
from tlp_service.scheduling.fair_queue import FairQueue

pytestmark = pytest.mark.slow

WRITABLE = "tlp_measurements_writable"


def said(server, path):
    code, body = server.get(path)
    return code, json.loads(body)


def wait_for(server, code):
    """Ask /health/measurements until the answer has this status, and return its body."""
    return until(lambda: (found := said(server, "/health/measurements"))[0] == code and found[1])


@pytest.fixture
def stream(request):
    with redis_server(binaries()[getattr(request, "param", "valkey")]) as (url, process):
        yield url, process


#: The two servers word their errors differently.
both = pytest.mark.parametrize("stream", binaries(), indirect=True)


@pytest.fixture
def server(tmp_path, linear_version, stream):
    with start(tmp_path / "unused", model=linear_version, redis_url=stream[0]) as running:
        yield running


def cannot_write(server, measured_request, good, reason):
    """Check all reports about measurements while the server can score."""
    error = wait_for(server, 503)
    assert error == {"error": f"the measurement stream cannot be written: {reason}", "code": "not_ready"}
    code, body = said(server, "/health/ready")
    documents.ReadyDocument.model_validate(body, strict=True)
    assert (code, body["status"], body["measurements"]) == (200, "ready", reason)
    assert server.metric(WRITABLE) == 0.0
    assert server.post("/v1/measurements", measured_request)[0] == 503
    assert server.post("/v1/predict", good[0])[1]["scores"] == pytest.approx(good[1])


def can_write(server, measured_request):
    assert wait_for(server, 200) == {"measurements": "kept"}
    assert said(server, "/health/ready")[1]["measurements"] == "kept"
    assert server.metric(WRITABLE) == 1.0
    assert server.post("/v1/measurements", measured_request)[0] == 200


@both
def test_a_read_only_replica_and_a_failover_back(server, stream, measured_request, good):
    can_write(server, measured_request)
    with redis.Redis.from_url(stream[0]) as client:
        client.replicaof("127.0.0.1", 1)
        cannot_write(server, measured_request, good, "it is a read-only replica")
        client.replicaof("NO", "ONE")
        can_write(server, measured_request)


@both
def test_a_server_that_is_full(server, stream, measured_request, good):
    with redis.Redis.from_url(stream[0]) as client:
        client.config_set("maxmemory", 1)
        cannot_write(server, measured_request, good, "it is full: it has reached its maxmemory")
        client.config_set("maxmemory", 0)
        can_write(server, measured_request)


@both
def test_a_user_who_may_not_append(server, stream, measured_request, good):
    with redis.Redis.from_url(stream[0]) as client:
        client.execute_command("ACL", "SETUSER", "default", "-xadd")
        cannot_write(server, measured_request, good, "it refuses the user, the password or a command")


def test_too_few_replicas(server, stream, measured_request, good):
    with redis.Redis.from_url(stream[0]) as client:
        client.config_set("min-replicas-to-write", 1)
        cannot_write(server, measured_request, good, "it answers NOREPLICAS")


def test_a_stream_that_is_something_else(server, stream, measured_request, good):
    with redis.Redis.from_url(stream[0]) as client:
        client.set(STREAM, "x")
        error = wait_for(server, 503)
        assert error["error"].startswith("the measurement stream cannot be written: it ")
        assert server.post("/v1/measurements", measured_request)[0] == 503


def test_a_server_that_is_gone(server, stream, measured_request, good):
    stream[1].kill()
    stream[1].wait()
    cannot_write(server, measured_request, good, "it cannot be reached")


def test_a_server_that_hangs_holds_no_check_up(server, stream, measured_request, good):
    """Redis hangs until all requests are answered, so none of them waited for it."""
    can_write(server, measured_request)
    stream[1].send_signal(signal.SIGSTOP)
    for _ in range(3):
        assert said(server, "/health/ready")[0] == 200
    error = wait_for(server, 503)
    assert error["error"] == "the measurement stream cannot be written: it does not answer"
    assert said(server, "/health/ready")[1]["measurements"] == "it does not answer"
    assert server.metric(WRITABLE) == 0.0
    assert server.post("/v1/predict", good[0])[1]["scores"] == pytest.approx(good[1])
    stream[1].send_signal(signal.SIGCONT)
    can_write(server, measured_request)


def test_a_server_starts_while_the_stream_hangs(tmp_path, linear_version, stream, good, measured_request):
    stream[1].send_signal(signal.SIGSTOP)
    with start(tmp_path / "unused", model=linear_version, redis_url=stream[0]) as server:
        assert server.post("/v1/predict", good[0])[1]["scores"] == pytest.approx(good[1])
        wait_for(server, 503)
        stream[1].send_signal(signal.SIGCONT)
        can_write(server, measured_request)
        until(lambda: "appendonly: expected yes, got no" in server.log)  # as soon as Redis answers


def test_what_is_tried_leaves_nothing_behind(server, stream):
    for _ in range(20):
        assert server.get("/health/measurements")[0] == 200
        assert server.get("/health/ready")[0] == 200
    with redis.Redis.from_url(stream[0]) as client:
        assert client.keys() == []
        assert client.exists(PROBE) == 0


def test_no_503_names_where_the_stream_is(tmp_path, linear_version, measured_request):
    url = "redis://:hunter2@127.0.0.1:1/0"
    with start(tmp_path / "unused", model=linear_version, redis_url=url) as server:
        texts = [
            server.get(path)[1].decode() for path in ("/health/measurements", "/health/ready", "/v1/quality")
        ]
        texts.append(json.dumps(server.post("/v1/measurements", measured_request)[1]))
    assert all("cannot be reached" in text for text in texts)
    for inner in ("127.0.0.1", ":1", "hunter2"):
        assert not any(inner in text.replace('":1', "") for text in texts), texts


def test_a_server_that_is_stopping_is_not_ready():
    executor = Executor(FairQueue(10, 10, 1.0), threads=1, chunk=1)
    executor.drain(0.0)
    service = SimpleNamespace(engine=SimpleNamespace(executor=executor))
    request = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(service=service)))
    with pytest.raises(NotReady, match="stopping"):
        asyncio.run(status.ready(request))
    executor.close()
