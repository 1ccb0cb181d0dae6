import json
import threading

import pytest
from models import write_linear_version
from serving import start, until


def test_the_answer_by_hand(server, good, linear_version):
    request, scores = good
    status, answer = server.post("/v1/predict", request)
    assert status == 200
    assert answer == {
        "format": 1,
        "model": "published",
        "version": linear_version.name,
        "scores": pytest.approx(scores),
        "errors": [],
    }


def test_a_hand_written_body_with_nested_candidates(server, good):
    body = b"""{"format": 1, "task": {"workload_key": "[]", "target": "llvm"},
                "candidates": [[["CI", 1], ["CI", 2]], [["CI", 2]], []]}"""
    assert server.post("/v1/predict", body)[1]["scores"] == pytest.approx(good[1])


def test_a_compressed_body(server, good):
    import gzip

    whole = json.dumps(good[0]).encode()
    for body in (gzip.compress(whole), gzip.compress(whole[:50]) + gzip.compress(whole[50:])):
        status, answer = server.post("/v1/predict", body, **{"Content-Encoding": "gzip"})
        assert (status, answer["scores"]) == (200, pytest.approx(good[1]))


def test_the_version_can_be_stated_and_must_be_loaded(server, good, linear_version):
    request, scores = good
    assert server.post("/v1/predict", {**request, "version": linear_version.name})[1][
        "scores"
    ] == pytest.approx(scores)
    status, answer = server.post("/v1/predict", {**request, "version": "published-000000000000"})
    assert (status, answer["code"]) == (404, "unknown_version")
    assert "'published-000000000000' is not loaded" in answer["error"]


@pytest.mark.slow
def test_how_likely_candidates_are_to_run_is_told_where_it_is_asked(tmp_path, server, good, measured_lines):
    status, answer = server.post("/v1/predict", {**good[0], "validity": True})
    assert (status, answer["code"]) == (422, "invalid")
    assert "does not tell it" in answer["error"]
    task, (_, steps) = json.loads(measured_lines[0])["i"]
    request = {
        "format": 1,
        "task": {"workload_key": task[0], "target": task[1]},
        "candidates": [steps, [7], []],
        "on_invalid": "report",
    }
    with start(tmp_path / "stream") as shipped:
        plain = shipped.post("/v1/predict", request)[1]
        asked = shipped.post("/v1/predict", {**request, "validity": True})[1]
    told = asked.pop("validity")
    assert asked == plain
    assert told[1] is None
    assert all(0 < told[n] < 1 for n in (0, 2))


@pytest.mark.parametrize(
    ("platform", "target", "status"),
    [
        ("k80", "cuda", 200),
        ("v100", "cuda", 200),
        (None, "cuda", 200),
        ("epyc", "llvm", 200),
        ("mi300", "cuda", 404),
        ("k80", "llvm", 422),
        (None, "hexagon", 422),
    ],
)
def test_who_decides_the_platform(server, good, platform, target, status):
    task = {"workload_key": "[]", "target": target, "platform": platform}
    assert server.post("/v1/predict", {**good[0], "task": task})[0] == status


def test_one_candidate_of_512_is_malformed(server):
    candidates = [[["CI", n % 9]] for n in range(512)]
    candidates[100] = [["CI", 1], ["PPT", 2, 0]]
    request = {"format": 1, "task": {"workload_key": "[]", "target": "llvm"}, "candidates": candidates}
    status, answer = server.post("/v1/predict", request)
    assert status == 422
    assert answer["error"].startswith("candidates[100], primitive 1: unknown primitive kind 'PPT'")
    status, answer = server.post("/v1/predict", {**request, "on_invalid": "report"})
    assert status == 200
    expected = [(1 + s / (1 + s)) / 2 for s in (n % 9 for n in range(512))]
    expected[100] = None
    assert answer["scores"] == [None if e is None else pytest.approx(e) for e in expected]
    assert [e["candidate"] for e in answer["errors"]] == [100]


@pytest.mark.parametrize("step", [["PPT", 2, 0], ["XX"], [], "SP", [7, 1]])
def test_an_unknown_primitive_has_the_same_answer_twice(server, good, step):
    request = {**good[0], "primitives": [["CI", 1], step], "on_invalid": "report"}
    first, second = (server.post("/v1/predict", request) for _ in range(2))
    assert first == second
    assert first[0] == 200
    assert first[1]["scores"] == [None, None, 0.5]


@pytest.mark.parametrize("count", [65, 640])
def test_more_candidates_than_one_run_takes_are_split_inside_in_order(server, count):
    candidates = [[["CI", n % 13]] for n in range(count)]
    request = {"format": 1, "task": {"workload_key": "[]", "target": "llvm"}, "candidates": candidates}
    scores = server.post("/v1/predict", request)[1]["scores"]
    assert scores == pytest.approx([(1 + s / (1 + s)) / 2 for s in (n % 13 for n in range(count))])


def test_a_tuning_log_as_it_lies_on_disk(server, measured_lines):
    lines = ["# a comment", *measured_lines[:40], "", measured_lines[40][:100], measured_lines[41]]
    body = "\n".join(lines).encode()
    status, answer = server.post("/v1/predict?platform=epyc", body, "application/x-ndjson")
    assert status == 200
    assert answer["lines"] == [*range(2, 42), 43, 44]
    assert [(e["candidate"], e["line"]) for e in answer["errors"]] == [(40, 43)]
    assert "not JSON" in answer["errors"][0]["error"]
    for line, score in zip(measured_lines[:40], answer["scores"], strict=False):
        steps = json.loads(line)["i"][1][1]
        nested = {"format": 1, "task": {"workload_key": "[]", "target": "llvm"}, "candidates": [steps]}
        assert server.post("/v1/predict", nested)[1]["scores"] == [score]


def test_a_log_of_mixed_targets_scores_each_by_its_own(server, measured_lines, cuda_lines):
    hexagon = measured_lines[1].replace("llvm -keys=cpu", "hexagon -keys=hexagon")
    body = "\n".join([measured_lines[0], cuda_lines[0], hexagon]).encode()
    status, answer = server.post("/v1/predict", body, "application/x-ndjson")
    assert status == 200
    assert [score is None for score in answer["scores"]] == [False, False, True]
    assert "neither 'platform' nor the target" in answer["errors"][0]["error"]


def test_a_platform_for_all_lines_is_a_fault_only_of_the_lines_it_contradicts(
    server, measured_lines, cuda_lines
):
    body = "\n".join([measured_lines[0], cuda_lines[0], measured_lines[1]]).encode()
    status, answer = server.post("/v1/predict?platform=epyc", body, "application/x-ndjson")
    assert status == 200
    assert [score is None for score in answer["scores"]] == [False, True, False]
    assert answer["errors"][0]["line"] == 2
    assert "'epyc' is a cpu, the target" in answer["errors"][0]["error"]
    status, answer = server.post("/v1/predict?platform=mars", body, "application/x-ndjson")
    assert (status, answer["code"]) == (404, "unknown_platform")


@pytest.mark.slow
def test_a_model_that_gives_nan_is_a_defined_error_in_json(tmp_path, good):
    version = write_linear_version(tmp_path, factor=3e38)
    request = {**good[0], "primitives": [["CI", 0], ["CI", 100]], "candidates": [[0], [1]]}
    with start(tmp_path / "stream", model=version) as server:
        status, answer = server.post("/v1/predict", request)
        assert (status, answer["code"]) == (500, "scoring_failed")
        assert answer["error"].startswith("candidates[1]: ")
        status, answer = server.post("/v1/predict", {**request, "on_invalid": "report"})
        assert (status, answer["scores"]) == (200, [0.5, None])


def test_every_log_version_gets_the_same_score(server, measured_lines):
    lines = []
    for version, length in (("v0.2", 2), ("v0.3", 3), ("v0.5", 5), ("v0.6", 6)):
        document = json.loads(measured_lines[0])
        document["i"][0], document["v"] = document["i"][0][:length], version
        lines.append(json.dumps(document))
    answer = server.post("/v1/predict", "\n".join(lines).encode(), "application/x-ndjson")[1]
    assert len(set(answer["scores"])) == 1
    assert None not in answer["scores"]


def test_an_empty_schedule_among_others_is_scored(server, measured_lines):
    empty = json.loads(measured_lines[0])
    empty["i"][1][1] = []
    body = "\n".join([*measured_lines[:31], json.dumps(empty)]).encode()
    scores = server.post("/v1/predict", body, "application/x-ndjson")[1]["scores"]
    assert len(scores) == 32
    assert None not in scores
    assert scores[31] == 0.5


@pytest.mark.slow
def test_a_passed_deadline_is_504(tmp_path, linear_version, good):
    hold = tmp_path / "hold"
    with start(tmp_path / "stream", model=linear_version, hold=hold) as server:
        hold.touch()
        assert server.post("/v1/predict", good[0], **{"tlp-deadline-s": "0.1"})[0] == 504
        hold.unlink()
        assert server.post("/v1/predict", good[0])[1]["scores"] == pytest.approx(good[1])


def test_a_senseless_deadline_is_422(server, good):
    for text in ("0", "-1", "nan", "inf", "soon"):
        status, answer = server.post("/v1/predict", good[0], **{"tlp-deadline-s": text})
        assert (status, answer["code"]) == (422, "invalid")


@pytest.mark.slow
def test_a_full_queue_is_429_and_says_when_to_come_back(tmp_path, linear_version, good):
    hold = tmp_path / "hold"
    with start(tmp_path / "stream", model=linear_version, max_waiting=60000, hold=hold) as server:
        hold.touch()
        blocker = {**good[0], "candidates": [[0, 1]] * 60000}
        body = json.dumps(blocker).encode()
        seen = []

        def ask():
            seen.append(server.request("POST", "/v1/predict", body, {"Content-Type": "application/json"}))

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        until(lambda: len(seen) == 5)
        hold.unlink()
        for thread in threads:
            thread.join()
        assert sorted(status for status, _, _ in seen) == [200, *[429] * 5]
        refused = next(headers for status, headers, _ in seen if status == 429)
        assert int(refused["Retry-After"]) >= 1
        assert server.post("/v1/predict", good[0])[1]["scores"] == pytest.approx(good[1])


def test_truncated_candidates_are_counted(server, good):
    before = server.metric("tlp_candidates_truncated_total")
    server.post("/v1/predict", {**good[0], "candidates": [[0] * 26, [0] * 25]})
    assert server.metric("tlp_candidates_truncated_total") == before + 1
