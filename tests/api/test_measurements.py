import json
import os
import signal
import tempfile

import pytest
import redis
from serving import children_of, start, until

from tlp_service.measurements.stream import STREAM

pytestmark = pytest.mark.slow


def in_stream(url):
    """The fields of every entry, over a connection of our own."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return [fields for _, fields in client.xrange(STREAM)]


@pytest.fixture
def redis_url(tmp_path):
    """An outside Redis-protocol server, the same binary that the embedded default runs."""
    from tlp_service.measurements.embedded import embedded_redis

    with embedded_redis(tmp_path / "outside") as url:
        yield url


@pytest.fixture
def server(tmp_path, linear_version, redis_url):
    with start(tmp_path / "unused", model=linear_version, redis_url=redis_url) as running:
        yield running


def test_records_are_in_the_stream_when_they_are_acknowledged(
    server, redis_url, measured_request, measured_lines
):
    measured_request["version"] = "published-0123456789ab"
    status, answer = server.post("/v1/measurements", measured_request)
    assert (status, answer) == (200, {"format": 1, "accepted": 3, "duplicates": 0, "rejected": []})
    entries = in_stream(redis_url)
    assert [e["id"] for e in entries] == ["r-0", "r-1", "r-2"]
    assert [e["record"] for e in entries] == measured_lines[:3]
    assert {(e["worker"], e["platform"], e["version"]) for e in entries} == {
        ("w", "epyc", "published-0123456789ab")
    }


def test_the_same_id_is_acknowledged_twice_and_kept_once(server, redis_url, measured_request):
    server.post("/v1/measurements", measured_request)
    measured_request["records"][1]["id"] = "new"
    answer = server.post("/v1/measurements", measured_request)[1]
    assert (answer["accepted"], answer["duplicates"]) == (1, 2)
    assert len(in_stream(redis_url)) == 4


def test_with_report_the_good_records_are_kept(server, redis_url, measured_request):
    measured_request["on_invalid"] = "report"
    measured_request["records"][1]["record"]["r"][0] = [-1.0]
    status, answer = server.post("/v1/measurements", measured_request)
    assert (status, answer["accepted"]) == (200, 2)
    assert [r["record"] for r in answer["rejected"]] == [1]
    assert [e["id"] for e in in_stream(redis_url)] == ["r-0", "r-2"]


def test_without_a_platform_the_kind_of_the_target_is_it(server, redis_url, measured_request, cuda_lines):
    del measured_request["platform"]
    measured_request["on_invalid"] = "report"
    gpu = json.loads(cuda_lines[0])
    gpu["r"][0] = [0.1]
    measured_request["records"][1]["record"] = gpu
    measured_request["records"][2]["record"]["i"][0][1] = "hexagon"
    bad_cost = json.loads(json.dumps(measured_request["records"][0]))
    bad_cost["record"]["r"][0] = [-1.0]
    measured_request["records"].insert(0, bad_cost | {"id": "bad"})
    answer = server.post("/v1/measurements", measured_request)[1]
    assert [e["platform"] for e in in_stream(redis_url)] == ["cpu", "gpu"]
    assert [r["record"] for r in answer["rejected"]] == [0, 3]
    assert "neither 'platform' nor the target 'hexagon'" in answer["rejected"][1]["error"]
    measured_request["on_invalid"] = "reject"
    del measured_request["records"][0]
    status, answer = server.post("/v1/measurements", measured_request)
    assert status == 422
    assert answer["error"].startswith("records[2]: ")


def test_a_platform_of_the_other_kind_is_refused(server, redis_url, measured_request, measured_lines):
    status, answer = server.post("/v1/measurements", {**measured_request, "platform": "v100"})
    assert status == 422
    assert "records[0]: 'v100' is a gpu, the target" in answer["error"]
    body = measured_lines[0].encode()
    answer = server.post("/v1/measurements?platform=v100", body, "application/x-ndjson")[1]
    assert (answer["accepted"], len(answer["rejected"])) == (0, 1)
    assert in_stream(redis_url) == []
    # hardware that no version knows yet may be anything
    assert server.post("/v1/measurements", {**measured_request, "platform": "new-box"})[0] == 200


def test_a_log_sent_twice_is_kept_once(server, redis_url, measured_lines):
    body = "\n".join([*measured_lines, "damaged", measured_lines[0]]).encode()
    first, second = (
        server.post("/v1/measurements?platform=epyc&worker=me", body, "application/x-ndjson")[1]
        for _ in range(2)
    )
    assert (first["accepted"], first["duplicates"]) == (len(measured_lines), 0)
    assert (second["accepted"], second["duplicates"]) == (0, len(measured_lines))
    assert [r["record"] for r in first["rejected"]] == [len(measured_lines)]
    assert {e["worker"] for e in in_stream(redis_url)} == {"me"}


def test_failed_runs_are_kept_and_show_in_the_metrics(server, measured_lines):
    for _ in range(2):  # what was sent twice was run once
        server.post(
            "/v1/measurements?platform=epyc", "\n".join(measured_lines).encode(), "application/x-ndjson"
        )
    assert server.metric('tlp_measured_runs_total{platform="epyc",result="valid"}') == 240
    assert server.metric('tlp_measured_runs_total{platform="epyc",result="failed"}') == 8


def test_without_a_stream_nothing_is_acknowledged_and_predict_goes_on(
    tmp_path, linear_version, measured_request, good
):
    url = f"unix://{tmp_path}/nobody.sock"
    with start(tmp_path / "unused", wait=False, model=linear_version, redis_url=url) as server:
        body = json.dumps(measured_request).encode()
        status, headers, answer = server.request(
            "POST", "/v1/measurements", body, {"Content-Type": "application/json"}
        )
        assert status == 503
        assert "the measurement stream cannot be written" in json.loads(answer)["error"]
        assert headers["Retry-After"] == "2"
        assert server.post("/v1/predict", good[0])[1]["scores"] == pytest.approx(good[1])
        status, answer = server.get("/health/ready")
        assert (status, json.loads(answer)["measurements"]) == (200, "it cannot be reached")
        assert server.get("/health/measurements")[0] == 503
        assert server.get("/health/live")[0] == 200
        assert server.get("/metrics")[0] == 200


def test_the_embedded_stream_survives_kill_9_and_leaves_no_orphan(tmp_path, linear_version, measured_request):
    data_dir = tmp_path / "stream"
    with start(data_dir, model=linear_version) as server:
        children = list(children_of(server.process.pid).values())
        assert len(children) == 1
        assert server.post("/v1/measurements", measured_request)[1]["accepted"] == 3
        server.kill()
    with start(data_dir, model=linear_version) as again:
        assert again.metric("tlp_measurement_stream_length") == 3
        assert again.post("/v1/measurements", measured_request)[1]["duplicates"] == 3
        assert not _is_running(children[0])
        assert again.stop() == 0


def test_servers_that_were_killed_leave_nothing_that_piles_up(tmp_path, linear_version, monkeypatch):
    """prometheus/client_python #275 and #568: each restart added files, and dead processes stayed in the scrape."""
    data_dir, seen = tmp_path / "stream", []
    with tempfile.TemporaryDirectory() as scratch:  # a socket needs a short path
        monkeypatch.setenv("TMPDIR", scratch)
        for _ in range(4):
            with start(data_dir, model=linear_version) as server:
                lines = server.get("/metrics")[1].decode().splitlines()
                series = {line.rsplit(" ", 1)[0] for line in lines if not line.startswith("tlp_request")}
                files = sorted(path.relative_to(data_dir) for path in data_dir.rglob("*"))
                seen.append((series, files, len(os.listdir(scratch))))
                server.kill()
    assert seen == [seen[0]] * 4


def test_two_servers_never_share_a_data_folder(tmp_path, linear_version, monkeypatch):
    from tlp_service.errors import BadSettings
    from tlp_service.measurements import embedded

    monkeypatch.setattr(embedded, "_LOCK_TIMEOUT_S", 0.2)
    with (
        embedded.embedded_redis(tmp_path / "stream"),
        pytest.raises(BadSettings, match="is in use by another server"),
        embedded.embedded_redis(tmp_path / "stream"),
    ):
        pass
    with embedded.embedded_redis(tmp_path / "stream"):
        pass


def test_a_stream_that_dies_is_started_again_with_all_it_kept(tmp_path, linear_version, measured_request):
    with start(tmp_path / "stream", model=linear_version) as server:
        assert server.post("/v1/measurements", measured_request)[1]["accepted"] == 3
        assert server.post("/v1/measurements", measured_request)[0] == 200
        statuses = set()

        def kill_and_ask():  # again, if it is back before this process could ask
            for child in children_of(server.process.pid).values():
                os.kill(child, signal.SIGKILL)
            statuses.add(server.post("/v1/measurements", measured_request)[0])
            assert statuses <= {200, 503}
            return 503 in statuses

        until(kill_and_ask)
        until(lambda: server.get("/health/measurements")[0] == 200)
        status, answer = server.post("/v1/measurements", measured_request)
        assert (status, answer["accepted"], answer["duplicates"]) == (200, 0, 3)
        assert "starting it again" in server.log


def _is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
