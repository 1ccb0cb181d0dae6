"""The client of this release with answers of earlier servers over a socket, and files of earlier clients."""

import json
import shutil
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from forms import IDS, OUTBOX_URL, PLATFORM, RELEASES
from serving import HANG_S

from tlp_client.connection import Connection, Round
from tlp_client.errors import Refused
from tlp_client.outbox import Outbox
from tlp_client.records import RecordParser
from tlp_client.spool import Spool
from tlp_client.tasks import Task
from tlp_client.wire.measurements import encode_measurements, measurement_id
from tlp_client.wire.predict import encode_predict

pytestmark = pytest.mark.slow

REFUSALS = [
    (release, refusal) for release in RELEASES for refusal in release.json("answers.json")["refusals"]
]
REFUSAL_IDS = [f"{release.folder.name}: {refusal['of']}" for release, refusal in REFUSALS]


class Stub:
    """Answers like the server of a release: with a given refusal, or else with the recorded answer.

    Other measurement requests get an answer of the same form; `rejected` contains the positions to reject.
    """

    def __init__(self, release):
        self.answers = release.json("answers.json")
        self.refusal = None
        self.rejected = ()
        self.kept = set()
        self.requests = []
        self.has_answered = threading.Semaphore(0)

    def answer(self, path, body):
        """Return status, headers and body."""
        document = json.loads(body)
        self.requests.append((path, document))
        if self.refusal is not None:
            return self.refusal["status"], self.refusal["headers"], self.refusal["body"]
        if path == "/v1/predict":
            return 200, {}, self.answers["predict"]
        ids = [record["id"] for place, record in enumerate(document["records"]) if place not in self.rejected]
        new = set(ids) - self.kept
        self.kept |= new
        rejected = self.answers["measurements_one_rejected"]["rejected"][0]
        return (
            200,
            {},
            {
                **self.answers["measurements"],
                "accepted": len(new),
                "duplicates": len(ids) - len(new),
                "rejected": [{**rejected, "record": place} for place in self.rejected],
            },
        )


@contextmanager
def serving(stub):
    """Yield the URL of a stub."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, answer = stub.answer(self.path, body)
            encoded = json.dumps(answer).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)
            stub.has_answered.release()

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def outbox_of(url, folder, connection=None):
    spool = Spool(folder, OUTBOX_URL, PLATFORM)
    connection = connection or Connection(url, platform=PLATFORM, sleep=lambda seconds: None)
    pauses = {"first_pause_s": 0.001, "max_pause_s": 0.002, "exit_wait_s": 0}
    return Outbox(connection, "heir", spool=spool, **pauses)


def letters(lines):
    records = [RecordParser().parse(line) for line in lines]
    return [(measurement_id(record, PLATFORM), record.to_line()) for record in records]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "outbox"


@pytest.mark.parametrize("release", RELEASES, ids=IDS)
def test_its_scores_are_taken(release):
    with serving(Stub(release)) as url:
        answer = Connection(url, platform=PLATFORM).predict(Task("[]", "llvm"), [], [[], [], []], Round())
    known = release.json("answers.json")["predict"]
    assert (answer.model, answer.version, answer.scores) == (
        known["model"],
        known["version"],
        known["scores"],
    )


@pytest.mark.parametrize("release", RELEASES, ids=IDS)
def test_its_account_of_measurements_is_taken_and_what_it_rejects_is_kept(release, folder, measured_lines):
    stub = Stub(release)
    stub.rejected = [1]
    sent = letters(measured_lines[:4])
    stub.kept = {sent[3][0]}
    with serving(stub) as url:
        box = outbox_of(url, folder)
        box.put(sent, None)
        assert box.flush(HANG_S)
        box.close()
    assert (box.acknowledged, box.rejected) == (3, 1)
    assert stub.kept == {sent[place][0] for place in (0, 2, 3)}
    (path,) = folder.iterdir()
    entry = json.loads(path.read_text())
    assert (entry["id"], entry["line"]) == sent[1]
    assert entry["reason"] == stub.answers["measurements_one_rejected"]["rejected"][0]["error"]


@pytest.mark.parametrize(("release", "refusal"), REFUSALS, ids=REFUSAL_IDS)
def test_its_refusal_of_a_request_loses_no_measurement(release, refusal, folder, measured_lines):
    stub = Stub(release)
    stub.refusal = refusal
    with serving(stub) as url:
        box = outbox_of(url, folder)
        box.put(letters(measured_lines[:2]), None)
        for _ in range(3):
            assert stub.has_answered.acquire(timeout=HANG_S)
        if (
            refusal["status"] != 413
        ):  # a 413 of the service for a single record is a verdict, and the record goes to quarantine
            assert (box.waiting, box.rejected) == (2, 0)
        stub.refusal = None
        assert box.flush(HANG_S)
        box.close()
    quarantined = [path.read_text().count("\n") for path in folder.glob("quarantine*")]
    assert box.acknowledged + sum(quarantined) == 2
    assert box.acknowledged == 2 or refusal["status"] == 413


@pytest.mark.parametrize(("release", "refusal"), REFUSALS, ids=REFUSAL_IDS)
def test_its_refusal_of_a_predict_call_is_told_with_a_remedy(release, refusal):
    stub = Stub(release)
    stub.refusal = refusal
    with serving(stub) as url:
        connection = Connection(url, platform=PLATFORM, sleep=lambda seconds: None)
        with pytest.raises(Refused) as refused:
            connection.predict(Task("[]", "llvm"), [], [[]], Round())
    assert (refused.value.status, refused.value.code) == (refusal["status"], refusal["body"]["code"])
    assert refusal["body"]["error"] in str(refused.value)
    assert refused.value.remedy


@pytest.mark.parametrize("release", RELEASES, ids=IDS)
def test_an_outbox_file_of_an_earlier_client_is_sent_as_it_was_left(release, folder):
    shutil.copytree(release.folder / "outbox", folder)
    stub = Stub(release)
    with serving(stub) as url:
        box = outbox_of(url, folder)
        assert box.flush(HANG_S)
        box.close()
    (path,) = (release.folder / "outbox").iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    gone = {id_ for line in lines for id_ in line.get("gone", ())}
    left = [
        (line["worker"], line["version"], line["id"]) for line in lines if line.get("id", *gone) not in gone
    ]
    sent = [
        (request["worker"], request["version"], record["id"])
        for _, request in stub.requests
        for record in request["records"]
    ]
    assert sent == left
    assert len(sent) == 3
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("release", RELEASES, ids=IDS)
def test_what_this_client_sends_is_read_by_the_release(release, measured_lines):
    """An older server refuses a whole request with a field that it does not know."""
    predict = encode_predict(
        Task("[]", "llvm"), ['["CI", 1]'], [[0], []], platform=PLATFORM, version="published-0123456789ab"
    )
    sent = letters(measured_lines[:5])
    measured = encode_measurements(sent, worker="host-7", platform=PLATFORM, version="published-0123456789ab")
    read = release.run_client(
        """
from tlp_client.wire.measurements import read_measurements
from tlp_client.wire.predict import read_predict
predict = read_predict(json.loads(arguments["predict"]))
measured = read_measurements(json.loads(arguments["measured"]))
print(json.dumps([predict.lengths.tolist(), [m.id for m in measured.measurements], len(measured.errors)]))
""",
        predict=predict.decode(),
        measured=measured.decode(),
    )
    assert read == [[1, 0], [id_ for id_, _ in sent], 0]
