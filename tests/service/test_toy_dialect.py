"""A second dialect needs nothing but its own file: the toy is scored, measured, stored and read from here alone.

The server and its recorder find the toy, and a model family that reads it, by the entry points of a distribution that
this test makes.
"""

import dataclasses
import json
from pathlib import Path
from typing import ClassVar

import msgspec
import pyarrow.compute as pc
import pytest
from models import linear_score, write_linear_version
from serving import start, until

from tlp_client.breaker import CircuitBreaker
from tlp_client.connection import Connection
from tlp_client.dialects.dialect import Dialect
from tlp_client.dialects.registry import register
from tlp_client.errors import InvalidPrimitive, InvalidRecord
from tlp_client.fallback import LocalFallback
from tlp_client.primitives import Primitive
from tlp_client.records import Record, RecordParser
from tlp_client.tasks import Task
from tlp_client.tuning_client import TuningClient
from tlp_client.wire.predict import read_predict
from tlp_service.errors import InvalidBody
from tlp_service.families.published.family import Published
from tlp_service.records.reader import stored_records, stored_sources
from tlp_service.records.report import platform_lines
from tlp_service.records.schema import Rows, Texts
from tlp_service.records.store import RecordStore
from tlp_service.scoring.scorer import Scorer
from tlp_service.training.dataset import ImportReport, valid_records
from tlp_service.versions.manifest import read_manifest, version_name, write_version

PROGRAM, TARGET = "for i: for j: c[i,j] = a[i,j]", "llvm -mcpu=core-avx2"


class Toy(Dialect):
    """A tuner of two kinds of steps, whose candidates are texts such as ``tile 3 i:4 j:8; unroll 1``."""

    name = "toy"
    versions = ("1", "2")
    kinds: ClassVar = {"tile": 2, "unroll": 1}

    def read_arguments(self, kind, args):
        if len(args) != self.kinds[kind] or type(args[0]) is not int:
            raise InvalidPrimitive(f"{kind} takes {self.kinds[kind]} arguments, a number first, not {args}")
        return args[0], *(tuple(map(tuple, tiles)) for tiles in args[1:])

    def read_record(self, document):
        if not isinstance(document, dict) or document.get("toy") not in self.versions:
            raise InvalidRecord(f"expected a record of toy {' or '.join(self.versions)}")
        task = Task(*document["on"], dialect=self.name)
        steps = self.read_primitives(document["did"])
        took = document["took"]
        costs = (took,) if took is not None else (0.0,)
        return Record(task, steps, costs, int(took is None), 0.0, document["at"], document["toy"])

    def record_json(self, record):
        return {
            "toy": record.version,
            "on": self.task_json(record.task),
            "did": [step.to_json() for step in record.primitives],
            "took": record.costs[0] if record.is_valid else None,
            "at": record.timestamp,
        }

    def task_json(self, task):
        return [task.workload_key, task.target]

    def split_primitives(self, candidates):
        known = {}
        found = [
            [known.setdefault(step, len(known)) for step in text.split("; ") if step] for text in candidates
        ]
        return [json.dumps(step_of(text)) for text in known], found

    def workload(self, key):
        return f"toy program {key.replace(' ', '')}"


def step_of(text):
    """Return the JSON of a step's text: ``tile 3 i:4`` is ``["tile", 3, [["i", 4]]]``."""
    kind, stage, *tiles = text.split()
    more = [[[loop, int(size)] for loop, _, size in (tile.partition(":") for tile in tiles)]] if tiles else []
    return [kind, int(stage), *more]


class ToyTuner:
    """The toy's own objects are a program, texts, pairs of both, and seconds."""

    dialect = "toy"

    def describe(self, task):
        return Task(task, TARGET, dialect=self.dialect)

    def candidates(self, task, candidates):
        return list(candidates)

    def line(self, measured, result):
        program, text = measured
        steps = [step_of(step) for step in text.split("; ") if step]
        return json.dumps({"toy": "2", "on": [program, TARGET], "did": steps, "took": result, "at": 7})

    def workload_key(self, measured):
        return measured[0]


class ToySteps(Published):
    """A family that reads the toy: to the network, a step is what inlining the stage of its number is."""

    name = "toy-steps"
    models = ()
    dialects = ("toy",)

    def inputs_in_steps(self, asked):
        translated = []
        for one in asked:
            steps = [Primitive("CI", step.args[:1]) for step in one.request.primitives]
            request = dataclasses.replace(one.request, primitives=steps)
            translated.append(dataclasses.replace(one, request=request))
        return (yield from super().inputs_in_steps(translated))


ENTRY_POINTS = """
[tlp_client.dialects]
toy = test_toy_dialect:Toy
broken = test_toy_dialect:missing

[tlp_service.families]
toy-steps = test_toy_dialect:ToySteps
"""


@pytest.fixture(scope="module", autouse=True)
def _toy():
    register(Toy())


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    """A version that scores the sum of the stages, of Ansor's candidates."""
    return write_linear_version(tmp_path_factory.mktemp("linear"))


@pytest.fixture(scope="module")
def toy_version(tmp_path_factory, version):
    """The same for the toy: a version scores what its family reads."""
    before = read_manifest(version)
    networks = [msgspec.structs.replace(network, features="toy-steps") for network in before.networks]
    manifest = msgspec.structs.replace(
        before, version=version_name("toy", networks), model="toy", networks=networks
    )
    files = {name: version / name for network in networks for name in network.files}
    return write_version(tmp_path_factory.mktemp("toy"), manifest, files)


@pytest.fixture
def server(tmp_path, toy_version, monkeypatch):
    """A server whose environment has the toy."""
    distribution = tmp_path / "installed" / "toy-1.0.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text(ENTRY_POINTS)
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, (distribution.parent, here, here.parent))))
    with start(tmp_path / "data", model=toy_version, recorder=1) as server:
        yield server


def toy_request(*candidates, **more):
    task = {"workload_key": PROGRAM, "target": TARGET, "platform": "epyc", "dialect": "toy"}
    return {
        "format": 1,
        "task": task,
        "candidates": [[step_of(s) for s in c.split("; ")] for c in candidates],
        **more,
    }


def client_of(server, folder):
    connection = Connection(server.url, platform="epyc", dialect="toy", breaker=CircuitBreaker(failures=1000))
    return TuningClient(
        ToyTuner(), LocalFallback(None), server.url, worker="w", outbox_dir=folder, connection=connection
    )


@pytest.mark.slow
def test_candidates_of_the_toy_are_scored_over_a_socket(server):
    status, answer = server.post("/v1/predict", toy_request("tile 3 i:4 j:8; unroll 1", "unroll 2"))
    assert (status, answer["scores"]) == (200, [linear_score(4), linear_score(2)])
    request = toy_request("unroll 2", "bind 1", "unroll 1 i:4", on_invalid="report")
    status, answer = server.post("/v1/predict", request)
    assert (status, answer["scores"]) == (200, [linear_score(2), None, None])
    assert "unknown primitive kind 'bind'; known: tile unroll" in answer["errors"][0]["error"]
    log = ToyTuner().line((PROGRAM, "unroll 5"), 0.5).encode()
    kind = "application/x-ndjson"
    status, answer = server.post("/v1/predict?platform=epyc&dialect=toy", log, kind)
    assert (status, answer["scores"]) == (200, [linear_score(5)])


@pytest.mark.slow
def test_a_version_refuses_a_dialect_that_its_family_does_not_read(server, version):
    task = {"workload_key": "[]", "target": "llvm"}
    ansor = {"format": 1, "task": task, "candidates": [[["CI", 3]]]}
    status, answer = server.post("/v1/predict", ansor)
    assert (status, answer["code"]) == (422, "unsupported")
    assert "task.dialect: expected one that this model version reads (toy), got 'ansor'" in answer["error"]
    scorer = Scorer(version)
    assert scorer.score(read_predict(ansor)).scores == [linear_score(3)]
    with pytest.raises(InvalidBody, match=r"task.dialect: expected .*\(ansor\), got 'toy'") as refused:
        scorer.prepare(read_predict(toy_request("unroll 2")))
    assert refused.value.code == "unsupported"


@pytest.mark.slow
@pytest.mark.parametrize("route", ["/v1/predict?dialect=unheard", "/v1/measurements?dialect=unheard"])
def test_a_dialect_that_nobody_registered_is_refused_with_those_that_are_known(server, route, measured_lines):
    predict = toy_request("unroll 2")
    predict["task"]["dialect"] = "unheard"
    measured = {"format": 1, "worker": "w", "dialect": "unheard", "records": [{}]}
    body = predict if "predict" in route else measured
    for answer in (
        server.post(route.partition("?")[0], body),
        server.post(route, measured_lines[0].encode(), "application/x-ndjson"),
    ):
        assert (answer[0], answer[1]["code"]) == (422, "unsupported")
        assert "dialect: expected one of ansor, toy, got 'unheard'" in answer[1]["error"]


@pytest.mark.slow
def test_a_search_by_the_toy_is_scored_and_all_it_measured_is_stored(server, tmp_path, measured_lines):
    client = client_of(server, tmp_path / "outbox")
    assert client.predict(PROGRAM, ["unroll 1", "tile 3 i:4; unroll 1", "unroll 1"]) == [
        linear_score(1),
        linear_score(4),
        linear_score(1),
    ]
    measured = [(PROGRAM, "unroll 1"), (PROGRAM, "tile 3 i:4; unroll 1"), (PROGRAM, "tile 0 j:2")]
    client.finish_round(measured, [0.5, 0.25, None])
    client.update(measured, [0.5, 0.25, None])
    assert client.outbox.flush(60)
    assert (client.outbox.acknowledged, client.outbox.rejected, client.counts.fallbacks) == (3, 0, 0)
    log = "\n".join(ToyTuner().line(*pair) for pair in zip(measured, [0.5, 0.25, None], strict=True)).encode()
    query = "/v1/measurements?worker=w&platform=epyc&dialect=toy"
    assert server.post(query, log, "application/x-ndjson")[1]["duplicates"] == 3
    ansor = {"id": "a", "record": json.loads(measured_lines[0])}
    body = {"format": 1, "worker": "w", "platform": "epyc", "records": [ansor]}
    assert server.post("/v1/measurements", body)[1]["accepted"] == 1
    client.outbox.close()

    until(lambda: server.metric("tlp_measurement_stream_length") == 0)
    until(lambda: json.loads(server.get("/v1/quality")[1])["platforms"])
    server.stop()
    store = RecordStore(tmp_path / "data" / "records")
    rows = store.read("epyc")
    assert sorted(rows["dialect"].to_pylist(), key=str) == [None, "toy", "toy", "toy"]
    toy = rows.filter(pc.equal(rows["dialect"], "toy"))
    assert sorted(toy["primitives"].to_pylist()) == [
        '[["tile",0,[["j",2]]]]',
        '[["tile",3,[["i",4]]],["unroll",1]]',
        '[["unroll",1]]',
    ]
    assert set(toy["log_version"].to_pylist()) == {"2"}
    found = {record.task.dialect: record for _, record in stored_records(store)}
    assert found.keys() == {"ansor", "toy"}
    records = [record for _, record in stored_records(store) if record.task.dialect == "toy"]
    assert {record.task for record in records} == {Task(PROGRAM, TARGET, dialect="toy")}
    assert sorted((record.is_valid, record.costs) for record in records)[1:] == [
        (True, (0.25,)),
        (True, (0.5,)),
    ]
    assert set(records) == {Toy().read_record(json.loads(line)) for line in log.splitlines()}

    workloads = {workload for workload, _ in stored_sources(store)}
    assert workloads == {found["ansor"].task.workload, "toy program " + PROGRAM.replace(" ", "")}
    assert [line.split()[:4] for line in platform_lines(store)] == [["epyc", "4", "1", "2"]]
    store.compact()
    assert sorted(map(repr, stored_records(RecordStore(store.folder)))) == sorted(
        map(repr, stored_records(store))
    )


def test_no_model_learns_from_what_its_features_do_not_read():
    lines = [ToyTuner().line((PROGRAM, text), 0.5) for text in ("unroll 1", "unroll 2")]
    records = [("epyc", Toy().read_record(json.loads(line))) for line in lines]
    report = ImportReport()
    assert list(valid_records(records, report)) == []
    assert list(valid_records(records, ImportReport(), dialects=ToySteps.dialects)) == records
    assert report.counts == {"left out: dialect 'toy', which the model does not read": 2}


@pytest.mark.slow
def test_a_server_that_does_not_know_the_toy_refuses_it_and_loses_nothing(tmp_path, version, caplog):
    with start(tmp_path / "data", model=version) as server:
        status, answer = server.post("/v1/predict", toy_request("unroll 2"))
        assert (status, answer["code"]) == (422, "unsupported")
        assert "task.dialect: expected one of ansor, got 'toy'" in answer["error"]
        client = client_of(server, tmp_path / "outbox")
        assert len(client.predict(PROGRAM, ["unroll 1", "unroll 2"])) == 2
        client.update([(PROGRAM, "unroll 1")], [0.5])
        assert not client.outbox.flush(0.5)
        assert (client.outbox.waiting, client.outbox.rejected, client.counts.fallbacks) == (1, 0, 1)
        client.outbox.close()
    assert "falling back" in caplog.text
    assert "update the older one" in caplog.text


def test_equal_lines_of_two_dialects_are_two_rows(measured_lines):
    record = RecordParser().parse(measured_lines[0])
    as_toy = dataclasses.replace(record, task=dataclasses.replace(record.task, dialect="toy"))
    rows = Rows("epyc", Texts())
    for one in (record, as_toy):
        rows.add(one, measured_lines[0].encode(), "log", 1)
    table = rows.table()
    assert table["dialect"].to_pylist() == [None, "toy"]
    assert len(set(table["id"].to_pylist())) == 2
