"""The search never stops because of the service."""

import json
import logging
import math
import os
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import PLATFORM, model_over
from serving import HANG_S, SERVICE_PYTHON, Server, start
from test_ansor_model import assert_scores, pairs
from tvm import auto_scheduler

from tlp_client.ansor import SendMeasured, TLPRemoteModel, make_xgb_model
from tlp_client.breaker import CircuitBreaker
from tlp_client.connection import Connection
from tlp_client.errors import Unreachable
from tlp_client.fallback import LocalFallback
from tlp_client.transport import HttpAnswer


class Always:
    """A transport with one outcome."""

    def __init__(self, outcome):
        self.outcome = outcome
        self.requests = 0

    def post(self, path, body, headers, timeout_s):
        self.requests += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def scores_answer(*scores):
    body = {"format": 1, "model": "m", "version": "v", "scores": scores, "errors": []}
    return HttpAnswer(200, {}, json.dumps(body).encode())


OUTCOMES = {
    "200 without scores": HttpAnswer(200, {}, b"{}"),
    "200 with too few scores": scores_answer(0.5),
    "200 with NaN": HttpAnswer(200, {}, scores_answer(*[0.5] * 8).body.replace(b"0.5", b"NaN", 1)),
    "200 with no valid candidate": scores_answer(*[None] * 8),
    "200 with a score of 310 digits": scores_answer(*[0.5] * 7, 10**309),
    "200 with a score beyond 32 bits": scores_answer(*[0.5] * 7, 1e39),
    "200 of another format": HttpAnswer(200, {}, b'{"format": 2, "values": []}'),
    **{
        f"{status} {code}": HttpAnswer(status, {}, b'{"error": "refused", "code": "%s"}' % code.encode())
        for status, code in (
            (422, "unknown_format"),
            (422, "unknown_field"),
            (400, "unsupported"),
            (422, "a_code_of_a_later_server"),
            (404, "a_code_of_a_later_server"),
            (418, "a_code_of_a_later_server"),
        )
    },
    **{
        str(status): HttpAnswer(status, {}, b'{"error": "refused", "code": ""}')
        for status in (400, 401, 404, 409, 413, 422, 429, 500, 503, 504)
    },
    "a proxy's page": HttpAnswer(502, {}, b"<html>bad gateway</html>"),
    "closed socket": Unreachable("connection reset"),
    "a bug": RuntimeError("unexpected"),
}


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
def test_whatever_the_service_answers_there_are_scores_and_one_warning(task, states, caplog, outcome):
    """apache/tvm #14510: a status that the client had no case for ended the tuning run."""
    model = model_over(Always(outcome))
    for _ in range(3):
        assert_scores(model.predict(task, states[:8]), 8)
        model.update(*pairs(task, states[:1]))
    model.outbox.close()
    assert model.counts.fallbacks == 3
    warnings = [r for r in caplog.records if r.levelno >= logging.WARNING and "falling back" in r.message]
    assert len(warnings) == 1


def test_the_warning_names_a_server_of_another_format_and_what_to_do(task, states, caplog):
    error = b'{"error": "format: this is wire format 2, not 1", "code": "unknown_format"}'
    model = model_over(Always(HttpAnswer(422, {}, error)))
    assert_scores(model.predict(task, states[:8]), 8)
    model.outbox.close()
    (warning,) = [r.getMessage() for r in caplog.records if "falling back" in r.message]
    assert "422: format: this is wire format 2, not 1" in warning
    assert "update the older one" in warning


def serve_once(behave):
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def run():
        connection, _ = listener.accept()
        with connection:
            behave(connection, stop)

    threading.Thread(target=run, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}", listener, stop


@contextmanager
def unruly(server):
    """Stand before the real server.

    Yield the URL, and a list whose last element says how requests to predict are met.
    """
    moods = [200]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # which keeps connections

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            mood = moods[-1] if self.path == "/v1/predict" else 200
            status, answer = mood, b'{"error": "refused", "code": ""}'
            if mood in (200, "a half-sent body"):
                kind = {"Content-Type": self.headers["Content-Type"]}
                status, _, answer = server.request("POST", self.path, body, kind)
            self.close_connection = not isinstance(mood, int)
            if mood == "a closed socket":
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer[: len(answer) // 2] if mood == "a half-sent body" else answer)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as front:
        threading.Thread(target=front.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{front.server_port}", moods
        front.shutdown()


def test_a_search_outlives_every_kind_of_answer_and_warns_once_of_each(server, task, caplog):
    """apache/tvm #14510, under Ansor's own search and over a socket.

    The round after a fault is scored by the service again.
    """
    faults = [400, 413, 422, 429, 500, 503, "a closed socket", "a half-sent body"]
    params = {
        **auto_scheduler.SketchPolicy.DEFAULT_PARAMS,
        "sample_init_min_population": 20,
        "evolutionary_search_population": 64,
        "evolutionary_search_num_iters": 1,
    }
    with unruly(server) as (url, moods):
        model = TLPRemoteModel(url, platform=PLATFORM)
        policy = auto_scheduler.SketchPolicy(task, model, params=params, verbose=0)
        population = policy.sample_initial_population()
        for mood in (mood for fault in faults for mood in (200, fault, fault)):
            moods.append(mood)
            answered, fell_back = model.counts.predicts, model.counts.fallbacks
            best = policy.evolutionary_search(population, 4)
            assert len(best) == 4
            happened = (model.counts.predicts > answered, model.counts.fallbacks > fell_back)
            assert happened == (mood == 200, mood != 200), mood
            model.update(*pairs(task, best[:1]))
        assert model.outbox.flush(HANG_S)
        assert model.outbox.rejected == 0
    warnings = [
        r.message for r in caplog.records if r.name.startswith("tlp_client") and r.levelno >= logging.WARNING
    ]
    assert ["falling back" in message for message in warnings] == [True] * len(faults)


def test_a_half_sent_answer_is_a_fallback(task, states):
    def half(connection, stop):
        connection.recv(1 << 20)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")

    url, listener, _ = serve_once(half)
    with listener:
        model = TLPRemoteModel(url, deadline_s=2)  # nobody takes its second connection
        assert_scores(model.predict(task, states[:8]), 8)
        assert model.counts.fallbacks == 1


def test_a_server_that_sleeps_costs_the_deadline_and_no_more(task, states):
    """apache/tvm #6922: the timeout that the user stated was not passed down, so the default ruled."""
    url, listener, stop = serve_once(lambda connection, stop: stop.wait(HANG_S))
    with listener:
        model = TLPRemoteModel(url, deadline_s=0.2)
        scores = model.predict(task, states[:8])  # while the server sleeps on
        assert_scores(scores, 8)
        assert model.counts.fallbacks == 1
        stop.set()


def test_after_a_fallback_the_round_stays_with_it_and_the_next_asks_again(task, states):
    transport = Always(Unreachable("down"))
    model = model_over(transport, sleep=lambda s: None)
    model.predict(task, states[:8])
    asked = transport.requests
    transport.outcome = scores_answer(*[0.5] * 8)
    model.predict(task, states[:8])
    assert transport.requests == asked  # one round never compares scores of two models
    model.update(*pairs(task, states[:1]))
    assert model.predict(task, states[:8]) == [0.5] * 8
    assert (model.counts.fallbacks, model.counts.predicts) == (2, 1)
    model.outbox.close()


def test_the_fallback_is_ansors_own_model_once_enough_is_measured(task, states):
    fallback = LocalFallback(make_xgb_model)
    inputs, results = pairs(task, states[:256])
    fallback.learn(inputs, results)
    scores = fallback.predict(task, states[256:])
    lengths = [len(state.transform_steps) for state in states[256:]]  # the made-up costs grow with them
    ordered = [(scores[a] > scores[b]) for a in range(256) for b in range(256) if lengths[a] < lengths[b]]
    assert sum(ordered) / len(ordered) > 0.8
    assert all(math.isfinite(s) and s >= 0 for s in scores)


def test_the_fallback_learns_what_comes_later(task, states):
    fallback = LocalFallback(make_xgb_model)
    inputs, results = pairs(task, states[:128])
    fallback.learn(inputs[:64], results[:64])
    fallback.predict(task, states[:4])
    fallback.learn(inputs[64:], results[64:])
    fallback.predict(task, states[:4])
    assert len(fallback._model.inputs) == 128


def test_without_xgboost_the_fallback_is_random_and_says_so(task, states, monkeypatch, caplog):
    import sys

    from tvm.auto_scheduler.cost_model import xgb_model

    monkeypatch.setitem(sys.modules, "xgboost", None)
    monkeypatch.setattr(xgb_model, "xgb", None)
    fallback = LocalFallback(make_xgb_model)
    fallback.learn(*pairs(task, states[:100]))
    scores = fallback.predict(task, states[:50])
    assert_scores(scores, 50)
    assert len(set(scores)) == 50
    fallback.predict(task, states[:50])
    assert [r.message for r in caplog.records] == ["xgboost does not import, so the local scores are random"]


class AtRound:
    """A measure callback that does things after certain rounds."""

    def __new__(cls, actions):
        class Callback(auto_scheduler.measure.PythonBasedMeasureCallback):
            def __init__(self):
                super().__init__()
                self.round = 0

            def callback(self, policy, inputs, results):
                self.round += 1
                actions.get(self.round, lambda: None)()

        return Callback()


def test_kill_9_in_the_middle_of_a_tuning_run(tmp_path, small_task, caplog):
    """Tuning ends, by fallback scores; the server comes back and scores again; all that was measured arrives."""
    data_dir = tmp_path / "stream"
    servers = [start(data_dir)]
    port = servers[0].port
    connection = Connection(
        servers[0].url,
        platform="epyc-9004-2c",
        breaker=CircuitBreaker(first_pause_s=0.05, max_pause_s=0.1),
    )
    model = TLPRemoteModel(servers[0].url, connection=connection)
    seen = []

    def note():
        seen.append((model.counts.predicts, model.counts.fallbacks))

    def kill():
        note()
        servers[0].kill()

    def restart():
        note()
        servers.append(Server(SERVICE_PYTHON, data_dir, port=port))

    log = tmp_path / "log.json"
    options = auto_scheduler.TuningOptions(
        num_measure_trials=20,
        num_measures_per_round=4,
        runner=auto_scheduler.LocalRunner(number=1, repeat=1, min_repeat_ms=1),
        measure_callbacks=[
            auto_scheduler.RecordToFile(str(log)),
            SendMeasured(model),
            AtRound({1: kill, 3: restart, 5: note}),
        ],
        verbose=0,
    )
    params = {**auto_scheduler.SketchPolicy.DEFAULT_PARAMS, "evolutionary_search_population": 64}
    small_task.tune(
        options, search_policy=auto_scheduler.SketchPolicy(small_task, model, params=params, verbose=0)
    )
    try:
        (before, none), (at_restart, fell_back), (after, _) = seen
        assert none == 0 < before  # round 1: the service
        assert fell_back > 0  # rounds 2 and 3: the fallback
        assert at_restart == before
        assert after > at_restart  # then the service again
        assert [r.message for r in caplog.records if "falling back" in r.message] != []
        assert model.outbox.flush(30)
        measured = len(log.read_text().splitlines())
        assert measured == 20
        assert servers[1].metric("tlp_measurement_stream_length") == measured
    finally:
        for server in servers:
            server.__exit__()


def test_what_a_killed_worker_measured_while_the_service_was_down_arrives_by_the_next(tmp_path, outbox_dir):
    import signal
    import subprocess
    import sys

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    program = f"""
import os, sys; sys.path[:0] = {sys.path!r}
from conftest import sample
from operators import OPERATORS
from test_ansor_model import pairs
from tlp_client.ansor import TLPRemoteModel
from tvm import auto_scheduler
task = auto_scheduler.SearchTask(func=OPERATORS["softmax 512x1024"][0], args=(16, 16), target="llvm")
TLPRemoteModel({url!r}, platform="epyc-9004-2c").update(*pairs(task, sample(task, 10)))
os.kill(os.getpid(), 9)
"""
    killed = subprocess.run([sys.executable, "-c", program], check=False, timeout=HANG_S)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(outbox_dir.iterdir())) == 1
    with Server(SERVICE_PYTHON, tmp_path / "stream", port=port) as server:
        model = TLPRemoteModel(url, platform="epyc-9004-2c")
        assert model.outbox.flush(HANG_S)
        assert server.metric("tlp_measurement_stream_length") == 10
        model.outbox.close()
    assert list(outbox_dir.iterdir()) == []


def test_a_process_that_ends_sends_its_last_records(tmp_path, server):
    """The outbox is flushed at exit, without any call."""
    import subprocess
    import sys

    before = server.metric("tlp_measurement_stream_length")
    program = f"""
import sys; sys.path[:0] = {sys.path!r}
from conftest import sample
from operators import OPERATORS
from test_ansor_model import pairs
from tlp_client.ansor import TLPRemoteModel
from tvm import auto_scheduler
task = auto_scheduler.SearchTask(func=OPERATORS["softmax 512x1024"][0], args=(16, 16), target="llvm")
model = TLPRemoteModel({server.url!r}, platform="epyc-{os.getpid()}")
model.update(*pairs(task, sample(task, 10)))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=HANG_S)
    assert server.metric("tlp_measurement_stream_length") == before + 10
