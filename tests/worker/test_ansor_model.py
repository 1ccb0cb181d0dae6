"""The cost model against a real server, under real Ansor."""

import json
import math
from collections import Counter, deque

import numpy as np
import pytest
from conftest import CPU_TARGET, PLATFORM, ROOT, model_over, sample
from operators import OPERATORS
from serving import start
from tvm import auto_scheduler

from tlp_client import fallback, tuning_client
from tlp_client.ansor import SendMeasured, TLPRemoteModel, make_search_policies, make_xgb_model
from tlp_client.fallback import LocalFallback
from tlp_client.records import RecordParser
from tlp_client.states import serialize_states
from tlp_client.transport import HttpTransport


def steps(line):
    return json.loads(line)["i"][1][1]


def assert_scores(scores, count):
    assert isinstance(scores, list)
    assert len(scores) == count
    assert all(type(s) is float and math.isfinite(s) and s >= 0 for s in scores)


def test_one_score_a_state_in_order_as_the_service_gives_them(remote, server, task, states):
    scores = remote.predict(task, states)
    assert_scores(scores, len(states))
    lines = serialize_states(task, states)
    nested = [steps(line) for line in lines]
    named = {"workload_key": task.workload_key, "target": str(task.target), "platform": PLATFORM}
    request = {"format": 1, "task": named, "candidates": nested}
    assert scores == server.post("/v1/predict", request)[1]["scores"]
    assert len(set(scores)) > len(states) / 2  # spread, so that the search can choose
    assert (remote.counts.predicts, remote.counts.candidates, remote.counts.fallbacks) == (1, 512, 0)


def test_a_state_has_the_same_score_alone_and_in_company(remote, server, task, states):
    together = remote.predict(task, states[:40])
    # each by a model that knows no scores yet
    alone = [TLPRemoteModel(server.url, PLATFORM).predict(task, [state])[0] for state in states[:40]]
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_a_state_that_was_scored_in_this_round_is_not_asked_for_again(server, task, states):
    transport = Recording(server.url)
    model = model_over(transport)
    first = model.predict(task, states[:40])
    mixed = model.predict(task, [*states[30:50], states[30], states[49]])
    assert mixed[:10] == first[30:]
    assert mixed[20:] == [mixed[0], mixed[19]]
    assert transport.candidates == [40, 10]  # what stands twice is asked for once
    assert model.predict(task, states[:50]) == first + mixed[10:20]
    assert transport.candidates == [40, 10]
    assert (model.counts.predicts, model.counts.candidates, model.counts.cached) == (3, 112, 62)
    alone = TLPRemoteModel(server.url).predict(task, states[:50])
    np.testing.assert_allclose(first + mixed[10:20], alone, rtol=1e-5)


def test_a_new_round_asks_anew_though_the_scores_are_known(server, task, states):
    """Only the service knows whether another version serves by now."""
    transport = Recording(server.url)
    model = model_over(transport)
    model.predict(task, states[:4])
    model.finish_round(*pairs(task, states[:2]))
    model.predict(task, states[:4])
    model.predict(task, states[:5])
    assert transport.candidates == [4, 4, 1]


def test_what_was_not_asked_for_is_told_to_the_service_once(server, task, states):
    model = TLPRemoteModel(server.url)
    before = server.metric("tlp_candidates_cached_total")
    model.predict(task, states[:20])
    model.predict(task, states[:20])
    model.predict(task, states[:15])
    model.predict(task, states[10:25])
    assert server.metric("tlp_candidates_cached_total") == before + 20 + 15 + 10


def test_no_states_no_request(task):
    """apache/tvm #12330: a round with no candidate left never ended."""
    transport = Corrupting("http://127.0.0.1:1", 0)
    model = model_over(transport)
    assert model.predict(task, []) == []
    model.update([], [])
    SendMeasured(model).callback(None, [], [])
    assert (transport.requests, model.counts.fallbacks, model.outbox.waiting) == (0, 0, 0)


def test_the_state_that_nothing_was_done_to_is_scored(remote, task):
    assert_scores(remote.predict(task, [task.compute_dag.get_init_state()]), 1)
    assert remote.counts.fallbacks == 0


def test_serialization_is_tvms_own(task, states):
    nothing = auto_scheduler.MeasureResult([0.0], 0, "", 0.0, 0.0)
    expected = [
        auto_scheduler.measure_record.dump_record_to_string(
            auto_scheduler.MeasureInput(task, s), nothing
        ).strip()
        for s in states[:50]
    ]
    assert serialize_states(task, states[:50]) == expected


def tune(task, model, log, trials=16, a_round=8, send=True):
    callbacks = [auto_scheduler.RecordToFile(str(log))] + ([SendMeasured(model)] if send else [])
    options = auto_scheduler.TuningOptions(
        num_measure_trials=trials,
        num_measures_per_round=a_round,
        runner=auto_scheduler.LocalRunner(number=1, repeat=1, min_repeat_ms=1),
        measure_callbacks=callbacks,
        verbose=0,
    )
    params = {"evolutionary_search_population": 128, "evolutionary_search_num_iters": 2}
    params = {**auto_scheduler.SketchPolicy.DEFAULT_PARAMS, **params}
    task.tune(options, search_policy=auto_scheduler.SketchPolicy(task, model, params=params, verbose=0))


def test_a_search_is_scored_by_the_service_and_all_it_measured_is_kept(tmp_path, small_task, monkeypatch):
    with start(tmp_path / "stream") as server:
        model = TLPRemoteModel(server.url, platform="epyc-9004-2c")
        versions, put = [], model.outbox.put
        monkeypatch.setattr(
            model.outbox,
            "put",
            lambda letters, version: (versions.append(version), put(letters, version)),
        )
        tune(small_task, model, tmp_path / "log.json")
        assert model.outbox.flush(20)
        lines = (tmp_path / "log.json").read_text().splitlines()
        assert model.counts.fallbacks == 0
        assert model.counts.predicts >= 2
        # TVM tells of a round's measurements in parts of a few.
        assert len(versions) > 4
        assert set(versions) == {model.version}
        assert sum(RecordParser().parse(line).is_valid for line in lines) > 8
        # each round went to the stream once, though both the callback and `update` sent all but the last
        assert server.metric("tlp_measurement_stream_length") == len(lines) == 16
        assert server.metric('tlp_measurements_total{outcome="duplicate"}') == 0


def test_without_the_callback_all_rounds_but_the_last_are_kept(tmp_path, small_task):
    with start(tmp_path / "stream") as server:
        model = TLPRemoteModel(server.url)
        tune(small_task, model, tmp_path / "log.json", send=False)
        assert model.outbox.flush(20)
        assert server.metric("tlp_measurement_stream_length") == 8


def test_the_task_scheduler_takes_the_policies(tmp_path, server, small_task, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the scheduler writes total_latency.tsv where it stands
    model = TLPRemoteModel(server.url)
    tasks = [small_task]
    policies = make_search_policies(tasks, model, {"evolutionary_search_population": 64}, verbose=0)
    options = auto_scheduler.TuningOptions(
        num_measure_trials=8,
        num_measures_per_round=4,
        runner=auto_scheduler.LocalRunner(number=1, repeat=1, min_repeat_ms=1),
        measure_callbacks=[auto_scheduler.RecordToFile(str(tmp_path / "log.json"))],
        verbose=0,
    )
    auto_scheduler.TaskScheduler(tasks).tune(options, search_policy=policies)
    assert model.outbox.flush(20)
    assert (model.counts.fallbacks, model.outbox.acknowledged) == (0, 8)
    restored = make_search_policies(tasks, model, verbose=0, load_log_file=str(tmp_path / "log.json"))
    assert len(restored) == 1


def test_a_task_that_has_no_candidates_left_does_not_hold_up_the_others(
    tmp_path, server, small_task, monkeypatch
):
    """apache/tvm #12330, with a task of four candidates under the real scheduler."""
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log.json"
    function, _ = OPERATORS["matmul 256x256x256 + relu"]
    four = auto_scheduler.SearchTask(func=function, args=(1, 1, 1), target=CPU_TARGET)
    model = TLPRemoteModel(server.url)
    tasks = [four, small_task]
    params = {"sample_init_min_population": 20, "evolutionary_search_population": 64}
    policies = make_search_policies(tasks, model, {**params, "evolutionary_search_num_iters": 1}, verbose=0)
    options = auto_scheduler.TuningOptions(
        num_measure_trials=12,
        num_measures_per_round=4,
        runner=auto_scheduler.LocalRunner(number=1, repeat=1, min_repeat_ms=1),
        measure_callbacks=[auto_scheduler.RecordToFile(str(log)), SendMeasured(model)],
        verbose=0,
    )
    scheduler = auto_scheduler.TaskScheduler(tasks, strategy="round-robin")
    scheduler.tune(options, search_policy=policies)
    assert scheduler.dead_tasks == {0}
    records = [RecordParser().parse(line) for line in log.read_text().splitlines()]
    measured = Counter(record.task.workload_key for record in records)
    assert measured == {four.workload_key: 4, small_task.workload_key: 8}
    assert model.outbox.flush(20)
    assert (model.counts.fallbacks, model.outbox.acknowledged) == (0, 12)


def test_a_cuda_search_runs_without_a_gpu(server, cuda_task):
    model = TLPRemoteModel(server.url, platform="a100")
    params = {**auto_scheduler.SketchPolicy.DEFAULT_PARAMS, "evolutionary_search_num_iters": 2}
    policy = auto_scheduler.SketchPolicy(cuda_task, model, params=params, verbose=0)
    population = policy.sample_initial_population()
    best = policy.evolutionary_search(population, 16)
    assert len(best) > 0
    assert model.counts.fallbacks == 0
    assert model.counts.predicts >= 2
    assert_scores(model.predict(cuda_task, list(best)), len(best))


def test_stage_scores_are_packed_without_a_breakdown(remote, task, states):
    packed = remote.predict_stages(task, states[:5])
    assert packed.dtype == np.float32
    np.testing.assert_allclose(packed[:5], remote.predict(task, states[:5]), rtol=1e-6)
    assert packed[5:].tolist() == [0] * 5


class Recording:
    """Sends to the real server; keeps the version that each predict asked for, and how many candidates."""

    def __init__(self, url):
        self._transport = HttpTransport(url)
        self.versions, self.candidates = [], []

    def post(self, path, body, headers, timeout_s):
        if path == "/v1/predict":
            request = json.loads(body)
            self.versions.append(request["version"])
            self.candidates.append(len(request["candidates"]))
        return self._transport.post(path, body, headers, timeout_s)


def test_the_version_stays_pinned_until_update_by_task(server, task, states, small_task):
    transport = Recording(server.url)
    model = model_over(transport)
    assert model.version is None
    model.predict(task, states[:4])
    model.predict(task, states[4:8])
    model.predict(small_task, sample(small_task, 4))
    model.update(*pairs(small_task, sample(small_task, 2)))
    model.predict(task, states[8:12])  # its round goes on
    model.update(*pairs(task, states[:2]))
    model.predict(task, states[:4])
    version = model.version
    assert version
    assert transport.versions == [None, version, None, version, None]
    assert model.outbox.flush(20)


def test_the_callback_ends_a_round_too(server, task, states):
    transport = Recording(server.url)
    model = model_over(transport)
    model.predict(task, states[:4])
    SendMeasured(model).callback(None, *pairs(task, states[:2]))
    model.predict(task, states[:4])
    assert transport.versions == [None, None]
    assert model.outbox.flush(20)


def test_names_that_the_service_would_refuse_are_refused_at_once(server):
    with pytest.raises(ValueError, match="platform"):
        TLPRemoteModel(server.url, platform="RTX 3080")
    with pytest.raises(ValueError, match="worker"):
        TLPRemoteModel(server.url, worker="my host")


def pairs(task, states):
    """Measure pairs of states with costs made up from their length; nothing is run."""
    inputs = [auto_scheduler.MeasureInput(task, state) for state in states]
    costs = [0.001 * (1 + len(state.transform_steps)) for state in states]
    return inputs, [
        auto_scheduler.MeasureResult([c], 0, "", 0.1, 1700000000 + n) for n, c in enumerate(costs)
    ]


def test_save_and_load_keep_the_version(remote, server, task, states, tmp_path):
    remote.predict(task, states[:4])
    remote.save(str(tmp_path / "model.json"))
    other = TLPRemoteModel(server.url)
    other.load(str(tmp_path / "model.json"))
    assert other.version == remote.version
    assert_scores(other.predict(task, states[:4]), 4)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": 1, "version": 2}', "not json"])
def test_a_file_that_save_did_not_write_is_not_passed_over(remote, tmp_path, text):
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is no file of TLPRemoteModel"):
        remote.load(str(path))
    with pytest.raises(FileNotFoundError):
        remote.load(str(tmp_path / "missing.json"))


def test_a_version_that_is_gone_is_replaced(remote, task, states, tmp_path):
    path = tmp_path / "model.json"
    path.write_text('{"model": "published", "version": "published-000000000000"}')
    remote.load(str(path))
    assert_scores(remote.predict(task, states[:4]), 4)
    assert remote.counts.fallbacks == 0
    assert remote.version != "published-000000000000"


def test_update_from_file_sends_a_log_and_its_repetition_once(tmp_path, task, states):
    log = tmp_path / "log.json"
    auto_scheduler.save_records(str(log), *pairs(task, states[:20]))
    with start(tmp_path / "stream") as server:
        for _ in range(2):
            model = TLPRemoteModel(server.url, platform="epyc")
            model.update_from_file(str(log))
            assert model.outbox.flush(20)
        assert server.metric("tlp_measurement_stream_length") == 20


class Corrupting:
    """Sends to the real server, with an unknown primitive at the end of one candidate."""

    def __init__(self, url, candidate):
        self._transport = HttpTransport(url)
        self._candidate = candidate
        self.requests = 0

    def post(self, path, body, headers, timeout_s):
        self.requests += 1
        document = json.loads(body)
        document["candidates"][self._candidate].append(len(document["primitives"]))
        document["primitives"].append(["PPT", 2, 0])
        return self._transport.post(path, json.dumps(document).encode(), headers, timeout_s)


@pytest.mark.parametrize("bad", [0, 100, 511])
def test_one_malformed_state_of_512_gets_the_lowest_score_and_the_others_theirs(server, task, states, bad):
    """apache/tvm PR #10937 and #17934: one candidate that could not be applied stopped the whole search."""
    model = model_over(Corrupting(server.url, bad))
    scores = model.predict(task, states)
    expected = TLPRemoteModel(server.url).predict(task, states)
    assert scores[bad] == 0 < min(expected)
    others = [n for n in range(512) if n != bad]
    np.testing.assert_allclose([scores[n] for n in others], [expected[n] for n in others], rtol=1e-5)
    assert (model.counts.invalid, model.counts.fallbacks) == (1, 0)


def test_models_of_several_threads_do_not_disturb_each_other(server, task, states):
    from concurrent.futures import ThreadPoolExecutor

    model = TLPRemoteModel(server.url)
    expected = model.predict(task, states)

    def predict(n):
        return model.predict(task, states[n : n + 64])

    with ThreadPoolExecutor(4) as pool:
        for n, scores in zip(range(0, 512, 64), pool.map(predict, range(0, 512, 64)), strict=True):
            np.testing.assert_allclose(scores, expected[n : n + 64], rtol=1e-5)
    assert model.counts.fallbacks == 0


def test_tvm_loads_what_we_write(tmp_path):
    lines = (ROOT / "tests" / "data" / "measured.json").read_text().splitlines()
    lines.append(lines[0].replace('[\\"', '[\\"é中', 1))  # a workload key beyond ASCII
    parser = RecordParser()
    ours = tmp_path / "ours.json"
    ours.write_text("\n".join(parser.parse(line).to_line() for line in lines) + "\n")
    inputs, results = auto_scheduler.RecordReader(str(ours)).read_lines()
    assert len(inputs) == len(lines)
    for line, measured, result in zip(lines, inputs, results, strict=True):
        record = parser.parse(line)
        assert [c.value for c in result.costs] == list(record.costs)
        assert (result.error_no, measured.task.workload_key) == (record.error_no, record.task.workload_key)
        again = auto_scheduler.measure_record.dump_record_to_string(measured, result).strip()
        assert json.loads(again) == json.loads(line)


def test_sampled_states_of_every_operator_parse_and_score(server):
    for function, arguments in OPERATORS.values():
        task = auto_scheduler.SearchTask(func=function, args=arguments, target="llvm")
        model = TLPRemoteModel(server.url)
        assert_scores(model.predict(task, sample(task, 32)), 32)
        assert (model.counts.fallbacks, model.counts.invalid) == (0, 0)


def test_a_long_tuning_run_remembers_a_bounded_number_of_rounds(monkeypatch, server, small_task):
    """A worker that tunes thousands of tasks one after the other kept a round of each."""
    monkeypatch.setattr(tuning_client, "_MAX_ROUNDS", 3)
    model = model_over(Recording(server.url))

    class Task:
        target = small_task.target

        def __init__(self, number):
            self.workload_key = f'["task", {number}]'

    for number in range(30):
        model.predict(Task(number), [None])  # is no state, so the fallback scores it, in a round all the same
        model.predict(Task(0), [None])
    assert list(model.client._rounds) == ['["task", 28]', '["task", 29]', '["task", 0]']


def test_the_fallback_keeps_a_bounded_number_of_measurements(monkeypatch, task, states):
    """Its XGBoost model keeps all that it was ever taught, and trains on it anew each time."""
    monkeypatch.setattr(fallback, "_MAX_REMEMBERED", 80)
    local = LocalFallback(make_xgb_model)
    local._measured = deque(maxlen=80)
    inputs, results = pairs(task, states[:8])
    most = 0
    for _ in range(30):
        local.learn(inputs, results)
        assert_scores(local.predict(task, states[:4]), 4)
        most = max(most, len(local._model.inputs) if local._model else 0)
    assert most == 160
