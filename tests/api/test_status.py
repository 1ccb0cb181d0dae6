import json
import threading
from collections import Counter

import pytest
from models import write_linear_version
from prometheus_client.parser import text_string_to_metric_families
from serving import indexed, start, until

from tlp_service.cli import main


def test_models_lists_what_is_served(server, linear_version):
    status, body = server.get("/v1/models")
    (model,) = json.loads(body)["models"]
    assert status == 200
    assert (model["model"], model["version"]) == ("published", linear_version.name)
    assert model["provider"] == "CPUExecutionProvider"
    assert [n["platforms"] for n in model["networks"]] == [["epyc"], ["k80", "v100"]]


def test_health(server, linear_version):
    assert server.get("/health/live") == (200, b'{"status":"live"}')
    status, body = server.get("/health/ready")
    assert (status, json.loads(body)["version"]) == (200, linear_version.name)
    assert json.loads(body)["provider"] == "CPUExecutionProvider"


def test_metrics_are_what_prometheus_reads(server, good):
    server.post("/v1/predict", good[0])
    families = {f.name: f for f in text_string_to_metric_families(server.get("/metrics")[1].decode())}
    assert families["tlp_execution_provider"].samples[0].labels == {"provider": "CPUExecutionProvider"}
    requests = {
        tuple(s.labels.values()): s.value
        for s in families["tlp_requests"].samples
        if s.name.endswith("_total")
    }
    assert requests["/v1/predict", "200"] >= 1
    scored = sum(s.value for s in families["tlp_candidates_scored"].samples if s.name.endswith("_total"))
    assert scored >= 3


@pytest.fixture(autouse=True)
def data_dir(tmp_path, monkeypatch):
    """Keep what a command that starts makes out of the working folder."""
    monkeypatch.setenv("TLP_DATA_DIR", str(tmp_path / "data"))


def refused(capsys, monkeypatch, **settings):
    for name, value in settings.items():
        monkeypatch.setenv(f"TLP_{name.upper()}", str(value))
    assert main(["serve", "--port", "0"]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("damage", ["missing", "empty", "other schema"])
def test_a_model_that_cannot_be_loaded_refuses_the_start(tmp_path, capsys, monkeypatch, damage):
    folder = write_linear_version(tmp_path)
    manifest = folder / "manifest.json"
    if damage == "missing":
        folder = tmp_path / "nowhere"
    elif damage == "empty":
        manifest.write_text("")
    else:
        manifest.write_text(manifest.read_text().replace('"schema": 1', '"schema": 7'))
    assert str(folder) in refused(capsys, monkeypatch, model=folder, data_dir=tmp_path / "stream")


def test_cuda_where_there_is_none_refuses_the_start(tmp_path, capsys, monkeypatch, linear_version):
    error = refused(capsys, monkeypatch, model=linear_version, device="cuda", data_dir=tmp_path / "stream")
    assert "TLP_DEVICE=cuda" in error


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("port", "eighty"),
        ("device", "tpu"),
        ("max_candidates", "0"),
        ("threads", "-1"),
        ("redis_url", "valkey:6379"),
        ("registry", "ftp://me:hunter2@host/models"),
        ("kept_versions", "-1"),
        ("registry_poll_s", "0"),
    ],
)
def test_a_setting_out_of_range_is_named(tmp_path, capsys, monkeypatch, setting, value):
    monkeypatch.setenv(f"TLP_{setting.upper()}", value)
    assert main(["serve"]) == 2
    assert f"TLP_{setting.upper()}: " in capsys.readouterr().err


@pytest.mark.parametrize("beside", ["recorder", "trainer"])
def test_a_record_store_that_cannot_be_made_refuses_the_start(
    tmp_path, capsys, monkeypatch, linear_version, beside
):
    """The server kept running while its recorder ended again and again."""
    (tmp_path / "file").write_text("")
    error = refused(
        capsys,
        monkeypatch,
        model=linear_version,
        data_dir=tmp_path / "stream",
        records=tmp_path / "file" / "records",
        **{"recorder": 0, "trainer": 0, beside: 1},
    )
    assert "TLP_RECORDS=" in error


def test_a_port_in_use_is_named(capsys, monkeypatch, server, linear_version):
    monkeypatch.setenv("TLP_MODEL", str(linear_version))
    assert main(["serve", "--port", str(server.port)]) == 2
    assert f"TLP_PORT={server.port}" in capsys.readouterr().err


@pytest.mark.slow
def test_a_setting_that_is_none_is_pointed_out(tmp_path, linear_version):
    with start(tmp_path / "stream", model=linear_version, thread=3) as server:
        assert "TLP_THREAD is no setting" in server.log


@pytest.mark.slow
def test_secrets_are_masked_in_the_log(tmp_path, linear_version):
    url = "redis://:hunter2@127.0.0.1:1/0"
    with start(tmp_path / "unused", wait=False, model=linear_version, redis_url=url) as server:
        assert "settings" in server.log
        assert "hunter2" not in server.log


@pytest.mark.slow
def test_sigterm_with_50_requests_waiting_answers_them_all_and_exits_with_0(tmp_path, measured_lines):
    """What has begun is scored, the rest is told to go elsewhere, and nobody is cut off."""
    steps = [json.loads(line)["i"][1][1] for line in measured_lines[:40]]
    hold = tmp_path / "hold"
    with start(tmp_path / "stream", hold=hold, threads=1, chunk=16) as server:
        request = indexed(steps, 1)
        answers = []

        def ask(number):
            answers.append(server.post("/v1/predict", request, **{"tlp-client": f"w{number}"}))

        hold.touch()
        threads = [threading.Thread(target=ask, args=(n,)) for n in range(50)]
        for thread in threads:
            thread.start()
        until(lambda: server.metric("tlp_clients_waiting") == 50)
        server.process.terminate()
        until(lambda: len(answers) == 49)
        hold.unlink()
        for thread in threads:
            thread.join()
        assert server.stop() == 0
    # The only scoring thread was working on a chunk of one of them.
    assert Counter(status for status, _ in answers) == {200: 1, 503: 49}
    assert all(
        len(answer["scores"]) == len(request["candidates"]) for status, answer in answers if status == 200
    )
