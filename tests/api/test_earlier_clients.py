"""Clients of earlier releases with this server, over a real socket.

It accepts their requests, and they lose no record.
"""

import json
import shutil

import pytest
from forms import IDS, OUTBOX_URL, PLATFORM, RELEASES
from serving import start, until

from tlp_service.versions.registry import Registry

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("release", RELEASES, ids=IDS)]


@pytest.fixture
def server(tmp_path, release):
    """A server of this release with the model version of the earlier one."""
    with start(tmp_path / "server", model=release.version) as running:
        yield running


def test_the_bytes_of_its_requests_are_answered_as_they_were(server, release):
    """The scores equal those of the earlier release to the last bit."""
    answers = release.json("answers.json")
    request = release.bytes("measurement_request.json")
    invalid = json.loads(request)
    invalid["records"][1]["record"]["r"][0] = [-1.0]
    asked = [
        ("/v1/predict", release.bytes("predict_request.json"), "predict"),
        ("/v1/measurements", request, "measurements"),
        ("/v1/measurements", request, "measurements_again"),
        ("/v1/measurements", json.dumps(invalid).encode(), "measurements_one_rejected"),
    ]
    for path, body, name in asked:
        status, answer = server.post(path, body)
        assert status == 200
        # A later server may add fields and change the text of an error.
        told = {key: answer[key] for key in answers[name]}
        if name == "measurements_one_rejected":
            assert [entry["record"] for entry in told.pop("rejected")] == [1]
            del answers[name]["rejected"]
        assert told == answers[name]


def test_its_registry_is_served_and_its_versions_score_as_they_did(release, tmp_path):
    """The version that its journal names serves, and any of its versions can be activated.

    Scores of a real network may differ in the last bits between processors.
    """
    shutil.copytree(release.folder / "registry", tmp_path / "registry")
    answers = release.json("answers.json")
    with start(tmp_path / "server", registry=tmp_path / "registry", registry_poll_s=0.05) as server:
        answer = server.post("/v1/predict", release.bytes("predict_request.json"))[1]
        assert answer["version"] == release.version.name
        assert answer["scores"] == answers["predict"]["scores"]
        for folder in release.versions[1:]:
            Registry(tmp_path / "registry").activate(folder.name, "test")
            until(lambda name=folder.name: json.loads(server.get("/health/ready")[1])["version"] == name)
            model = folder.name.split("-")[0]
            request = release.json(f"predict_{model}_request.json")
            for platform, known in answers[f"predict_{model}"].items():
                request["task"]["platform"] = None if platform == "None" else platform
                answer = server.post("/v1/predict", request)[1]
                assert answer["version"] == known["version"] == folder.name
                assert answer["errors"] == []
                for name in ("scores", "validity"):
                    assert answer[name] == pytest.approx(known[name], rel=1e-6)


def test_its_connection_predicts(server, release):
    scores = release.run_client(
        """
from tlp_client.connection import Connection, Round
from tlp_client.tasks import Task
connection = Connection(arguments["url"], platform="epyc", client="host-7", deadline_s=60)
request = arguments["request"]
task = Task(request["task"]["workload_key"], request["task"]["target"])
steps = [json.dumps(step) for step in request["primitives"]]
round_ = Round()
answers = [connection.predict(task, steps, request["candidates"], round_, cached) for cached in (0, 2_000_000_000)]
print(json.dumps([[a.version, a.scores] for a in answers]))
""",
        url=server.url,
        request=release.json("predict_request.json"),
    )
    answer = release.json("answers.json")["predict"]
    assert scores == [[answer["version"], answer["scores"]]] * 2


#: The outbox adopts the file of a killed worker and gets further lines. Each release runs this, so it names only what
#: all have.
_SEND = """
from pathlib import Path
from tlp_client.connection import Connection
from tlp_client.outbox import Outbox
from tlp_client.records import RecordParser
from tlp_client.spool import Spool
from tlp_client.wire import measurements
from tlp_client.wire.measurements import measurement_id
measurements.FORMAT = arguments["format"]
spool = Spool(Path(arguments["folder"]), arguments["outbox_url"], arguments["platform"])
connection = Connection(arguments["url"], platform=arguments["platform"])
requests, send = [], connection.send
connection.send = lambda *a, **k: [requests.append(1), send(*a, **k)][1]
box = Outbox(connection, "heir", spool=spool, first_pause_s=0.01, exit_wait_s=0)
records = [RecordParser().parse(line) for line in arguments["lines"]]
box.put([(measurement_id(r, arguments["platform"]), r.to_line()) for r in records], None)
while len(requests) < 3 and not box.flush(0.01):
    pass
is_empty = box.flush(arguments["wait_s"])
box.close()
box._thread.join(60)
print(json.dumps([is_empty, box.acknowledged, box.rejected, box.waiting]))
"""


def send(release, server, folder, lines, format_=1, wait_s=60):
    arguments = {"outbox_url": OUTBOX_URL, "platform": PLATFORM, "lines": lines, "format": format_}
    return release.run_client(_SEND, url=server.url, folder=str(folder), wait_s=wait_s, **arguments)


def test_its_outbox_delivers_what_waits_and_what_comes(server, release, tmp_path, measured_lines):
    folder = tmp_path / "outbox"
    shutil.copytree(release.folder / "outbox", folder)
    assert send(release, server, folder, measured_lines[10:13]) == [True, 6, 0, 0]
    assert server.metric("tlp_measurement_stream_length") == 6
    assert list(folder.glob("*.jsonl")) == []


def test_its_outbox_keeps_everything_where_this_server_is_of_another_format(
    server, release, tmp_path, measured_lines
):
    """No release of the client takes the code of this answer for a verdict on its records."""
    folder = tmp_path / "outbox"
    shutil.copytree(release.folder / "outbox", folder)
    assert send(release, server, folder, measured_lines[10:13], format_=2, wait_s=0) == [False, 0, 0, 6]
    refused = 'tlp_requests_total{route="/v1/measurements",status="422"}'
    assert server.metric(refused) >= 2
    assert send(release, server, folder, []) == [True, 6, 0, 0]
    assert server.metric("tlp_measurement_stream_length") == 6
