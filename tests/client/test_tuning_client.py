"""`TuningClient` with a tuner that needs no library.

The tests pin what every tuner's cost model does, whatever the service answers.
"""

import json
import logging
import math

import pytest

from tlp_client import tuning_client
from tlp_client.breaker import CircuitBreaker
from tlp_client.connection import Connection
from tlp_client.dialects.dialect import Dialect
from tlp_client.dialects.registry import register
from tlp_client.errors import Unreachable
from tlp_client.fallback import LocalFallback
from tlp_client.records import Record
from tlp_client.spool import Spool
from tlp_client.tasks import Task
from tlp_client.transport import HttpAnswer
from tlp_client.tuning_client import TuningClient


class Counting(Dialect):
    """Candidates are lists of numbers: their text says nothing of their task."""

    name = "counting"
    versions = ("1",)
    kinds = ("add",)

    def read_arguments(self, kind, args):
        return tuple(map(int, args))

    def read_record(self, document):
        task = Task(*document["task"], dialect=self.name)
        steps = self.read_primitives(document["steps"])
        return Record(task, steps, tuple(document["costs"]), 0, 0.0, document["at"], "1")

    def record_json(self, record):
        steps = [step.to_json() for step in record.primitives]
        return {
            "task": self.task_json(record.task),
            "steps": steps,
            "costs": list(record.costs),
            "at": record.timestamp,
        }

    def task_json(self, task):
        return [task.workload_key, task.target]

    def split_primitives(self, candidates):
        known = {}
        found = [
            [known.setdefault(f'["add", {n}]', len(known)) for n in json.loads(text)] for text in candidates
        ]
        return list(known), found


class CountingTuner:
    """A task is its key, a candidate a tuple of numbers, something measured a pair of both, its result a time."""

    dialect = "counting"

    def describe(self, task):
        return Task(task, "llvm", dialect=self.dialect)

    def candidates(self, task, candidates):
        return [json.dumps(candidate) for candidate in candidates]

    def line(self, measured, result):
        task, candidate = measured
        steps = [["add", n] for n in candidate]
        return json.dumps({"task": [task, "llvm"], "steps": steps, "costs": [result], "at": 0})

    def workload_key(self, measured):
        return measured[0]


class Service:
    """A transport that scores a candidate by its sum over 100, plus a half for a task whose key ends in 2."""

    def __init__(self):
        self.requests, self.measured = [], []
        self.version, self.outcome = "v1", None

    def post(self, path, body, headers, timeout_s):
        document = json.loads(body)
        if path == "/v1/measurements":
            self.measured.append(document)
            kept = len(document["records"])
            return answer({"accepted": kept, "duplicates": 0, "rejected": []})
        self.requests.append(document)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self.outcome is not None:
            return self.outcome
        steps = [step[1] for step in document["primitives"]]
        more = 0.5 if document["task"]["workload_key"].endswith("2") else 0.0
        sums = [sum(steps[index] for index in candidate) for candidate in document["candidates"]]
        # A sum below 0 is that of an invalid candidate.
        scores = [None if total < 0 else total / 100 + more for total in sums]
        errors = [{"candidate": n, "error": "negative"} for n, score in enumerate(scores) if score is None]
        return answer(
            {"model": "m", "version": document["version"] or self.version, "scores": scores, "errors": errors}
        )

    @property
    def sizes(self):
        return [len(request["candidates"]) for request in self.requests]


def answer(document):
    return HttpAnswer(200, {}, json.dumps({"format": 1, **document}).encode())


class Length:
    """A local model: the shorter the better, once it was taught."""

    def __init__(self):
        self.taught = []

    def update(self, measured, results):
        self.taught += zip(measured, results, strict=True)

    def predict(self, task, candidates):
        return [1.0 / (1 + len(candidate)) for candidate in candidates]


@pytest.fixture(scope="module", autouse=True)
def _counting():
    register(Counting())


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def make(service, tmp_path):
    made = []

    def make_client(tuner=None, make_model=None, **options):
        connection = Connection(
            "http://test",
            platform="epyc",
            dialect="counting",
            transport=service,
            breaker=CircuitBreaker(failures=1000),
            sleep=lambda s: None,
        )
        client = TuningClient(
            tuner or CountingTuner(),
            LocalFallback(make_model),
            "http://test",
            worker="w",
            outbox_dir=tmp_path,
            connection=connection,
            **options,
        )
        made.append(client)
        return client

    yield make_client
    for client in made:
        client.outbox.close()


@pytest.fixture
def client(make):
    return make()


def test_scores_are_the_services_in_order_and_none_is_asked_for_twice(client, service):
    assert client.predict("t1", [(1, 2), (5,), (1, 2)]) == [0.03, 0.05, 0.03]
    assert service.requests[0]["task"] == {
        "workload_key": "t1",
        "target": "llvm",
        "platform": "epyc",
        "dialect": "counting",
    }
    assert client.predict("t1", [(5,), (7,)]) == [0.05, 0.07]
    assert service.sizes == [2, 1]
    assert (client.counts.predicts, client.counts.candidates, client.counts.cached) == (2, 5, 2)
    assert client.version == "v1"
    assert client.predict("t1", []) == []
    assert service.sizes == [2, 1]


def test_equal_candidates_of_two_tasks_have_scores_of_their_own(client):
    for _ in range(2):
        assert client.predict("t1", [(1,), (2,)]) == [0.01, 0.02]
        assert client.predict("t2", [(1,), (2,)]) == [0.51, 0.52]


def test_an_invalid_candidate_gets_0_and_the_others_their_scores(client):
    assert client.predict("t1", [(1,), (-1,), (2,)]) == [0.01, 0.0, 0.02]
    assert (client.counts.invalid, client.counts.fallbacks) == (1, 0)


def test_a_round_keeps_its_version_until_its_task_is_measured(client, service):
    client.predict("t1", [(1,)])
    service.version = "v2"
    client.predict("t1", [(2,)])
    client.predict("t2", [(2,)])
    client.update([("t2", (2,))], [0.5])
    client.predict("t1", [(3,)])
    client.finish_round([("t1", (1,))], [0.5])
    client.predict("t1", [(1,)])
    assert [request["version"] for request in service.requests] == [None, "v1", None, "v1", None]
    assert client.version == "v2"


def test_what_is_measured_is_sent_once_with_dialect_version_and_platform(client, service):
    client.predict("t1", [(1,)])
    measured = [("t1", (1,)), ("t1", (2, 3))]
    client.finish_round(measured, [0.5, 0.25])
    client.update(measured, [0.5, 0.25])
    assert client.outbox.flush(60)
    (request,) = service.measured
    stated = {name: request[name] for name in ("worker", "platform", "version", "dialect")}
    assert stated == {"worker": "w", "platform": "epyc", "version": "v1", "dialect": "counting"}
    assert [entry["record"]["costs"] for entry in request["records"]] == [[0.5], [0.25]]
    client.update([], [])
    assert client.outbox.acknowledged == 2


def test_what_a_killed_process_left_goes_to_the_next_of_its_dialect(make, service, tmp_path):
    client = make()
    letters = client.outbox
    letters.close()
    client.update([("t1", (1,))], [0.5])  # the closed outbox keeps it in memory only
    spool = Spool(tmp_path, "http://test", "epyc", "counting")
    spool.add(list(letters._letters._ahead.values()))
    spool.close()
    heir = make()
    assert heir.outbox.flush(60)
    assert service.measured[0]["dialect"] == "counting"


def test_save_and_load_keep_the_version(client, make, service, tmp_path):
    path = str(tmp_path / "model.json")
    client.save(path)
    fresh = make()
    fresh.load(path)
    assert fresh.version is None
    client.predict("t1", [(1,)])
    client.save(path)
    service.version = "v2"
    fresh.load(path)
    assert fresh.version == "v1"
    fresh.predict("t1", [(1,)])
    assert service.requests[-1]["version"] == "v1"
    state = json.loads((tmp_path / "model.json").read_text())
    assert (state["service"], state["model"], state["version"]) == ("http://test", "m", "v1")
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(ValueError, match="is no file of"):
        fresh.load(path)


OUTCOMES = {
    "no connection": Unreachable("down"),
    "a bug": RuntimeError("unexpected"),
    "no scores": HttpAnswer(200, {}, b"{}"),
    "422 of a server that does not know the dialect": HttpAnswer(
        422, {}, b'{"error": "task: unknown field \'dialect\'", "code": "unknown_field"}'
    ),
    "503": HttpAnswer(503, {}, b"{}"),
    "all invalid": answer({"model": "m", "version": "v1", "scores": [None, None], "errors": []}),
}


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
def test_without_an_answer_the_fallback_scores_with_one_warning_until_the_service_is_back(
    client, service, caplog, outcome
):
    caplog.set_level(logging.INFO)
    service.outcome = outcome
    for _ in range(3):
        scores = client.predict("t1", [(1,), (2,)])
        assert len(scores) == 2
        assert all(math.isfinite(score) and score >= 0 for score in scores)
        client.update([("t1", (1,))], [0.5])
    asked = len(service.requests)
    client.predict("t1", [(1,)])
    service.outcome = None
    client.predict("t1", [(1,)])  # its round has scores of the fallback, and keeps to it
    assert len(service.requests) <= asked + 2
    client.update([("t1", (1,))], [0.5])
    assert client.predict("t1", [(1,)]) == [0.01]
    said = [r.getMessage() for r in caplog.records if r.name == "tlp_client.tuning_client"]
    assert ["falling back" in message for message in said] == [True, False]
    assert said[1] == "the cost-model service scores again"
    assert (client.counts.fallbacks, client.counts.fallback_candidates) == (5, 8)


@pytest.mark.parametrize("method", ["describe", "candidates", "line", "workload_key"])
def test_no_exception_of_the_tuner_leaves(make, method):
    class Broken(CountingTuner):
        def __getattribute__(self, name):
            if name == method:
                return self.fail
            return super().__getattribute__(name)

        def fail(self, *arguments):
            raise KeyError("the tuner's library")

    client = make(Broken())
    assert len(client.predict("t1", [(1,), (2,)])) == 2
    client.update([("t1", (1,))], [0.5])
    client.finish_round([("t1", (1,))], [0.5])
    client.update([("t1", (1,))], [])  # not even a wrong count
    assert len(client.predict("t1", [(1,)])) == 1


def test_a_tuner_that_writes_too_few_candidates_gets_local_scores(make):
    class Short(CountingTuner):
        def candidates(self, task, candidates):
            return super().candidates(task, candidates)[1:]

    client = make(Short())
    assert len(client.predict("t1", [(1,), (2,)])) == 2
    assert client.counts.fallbacks == 1


def test_a_record_that_cannot_be_read_keeps_no_other_from_being_sent(make, service):
    class Odd(CountingTuner):
        def line(self, measured, result):
            return "{" if result is None else super().line(measured, result)

    client = make(Odd())
    client.update([("t1", (1,)), ("t1", (2,))], [None, 0.5])
    assert client.outbox.flush(60)
    assert len(service.measured[0]["records"]) == 1


def test_the_fallback_is_the_model_of_its_tuner_once_enough_is_measured(make, service):
    models = []
    client = make(make_model=lambda: models.append(Length()) or models[-1])
    service.outcome = Unreachable("down")
    client.predict("t1", [(1,)])
    client.update([("t1", (n,)) for n in range(63)], [0.5] * 63)
    client.predict("t1", [(1, 1)])
    assert models == []  # chance, until it has learnt from as many as it needs
    client.update([("t1", (63,))], [0.25])
    assert client.predict("t1", [(1, 1, 1), ()]) == [0.25, 1.0]
    (model,) = models
    assert len(model.taught) == 64
    assert model.taught[-1] == (("t1", (63,)), 0.25)


def test_a_local_model_that_fails_is_replaced_by_chance(make, service, caplog):
    class Failing(Length):
        def predict(self, task, candidates):
            raise ZeroDivisionError

    client = make(make_model=Failing)
    service.outcome = Unreachable("down")
    client.update([("t1", (n,)) for n in range(64)], [0.5] * 64)
    assert len(set(client.predict("t1", [(n,) for n in range(50)]))) == 50
    assert "the local model failed" in caplog.text


def test_a_long_run_remembers_a_bounded_number_of_rounds(client, monkeypatch):
    monkeypatch.setattr(tuning_client, "_MAX_ROUNDS", 3)
    for number in range(30):
        client.predict(f"t{number}", [(1,)])
        client.predict("t0", [(1,)])
    assert list(client._rounds) == ["t28", "t29", "t0"]


def test_a_connection_for_another_dialect_is_refused():
    """It would state the wrong dialect with what is measured."""
    with pytest.raises(ValueError, match="expected one for the dialect 'counting', got 'ansor'"):
        TuningClient(
            CountingTuner(), LocalFallback(None), "http://test", connection=Connection("http://test")
        )
