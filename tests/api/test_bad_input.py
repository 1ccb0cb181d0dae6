"""Bad input over a real socket.

The status of the contract, an error that names what and where, and a server that goes on.
"""

import gzip
import json
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import HANG_S

JSON = "application/json"


@pytest.fixture(autouse=True)
def _still_serves(server, good):
    """After whatever a test sent, a good request has the same scores as ever."""
    yield
    status, answer = server.post("/v1/predict", good[0])
    assert (status, answer["scores"]) == (200, pytest.approx(good[1]))


def check(answer, status, code, *parts):
    assert answer[0] == status, answer
    assert set(answer[1]) == {"error", "code"}
    assert answer[1]["code"] == code
    for part in parts:
        assert part in answer[1]["error"]


PREDICT = {
    "format": 1,
    "task": {"workload_key": "[]", "target": "llvm"},
    "primitives": [["CI", 1], ["CI", 2]],
}


@pytest.mark.parametrize(
    ("changes", "status", "code", "parts"),
    [
        ({"candidates": "x"}, 422, "invalid", ["candidates: "]),
        ({"candidates": [["0"]]}, 422, "invalid", ["candidates[0], primitive 0", "'0'"]),
        ({"candidates": [[0], [5]]}, 422, "invalid", ["candidates[1], primitive 0", "index 5 is out of range"]),
        (
            {"candidates": [[0], [0, 1]], "primitives": [["CI", 1], ["PPT", 2, 0]]},
            422, "invalid", ["candidates[1], primitive 1", "unknown primitive kind 'PPT'"],
        ),
        (
            {"candidates": [[0], [0, 1]], "primitives": [["CI", 1], ["SA", 1, 2, 3, 4]]},
            422, "invalid", ["candidates[1], primitive 1", "no primitive kind 'SA'"],
        ),
        (
            {"candidates": [[0]], "task": {"workload_key": "[]", "target": "llvm", "platform": "mars"}},
            404, "unknown_platform", ["task.platform", "'mars'", "epyc"],
        ),
        ({"candidates": []}, 422, "invalid", ["candidates: a list of one or more"]),
        ({"candidates": [[0]] * 400_000}, 413, "too_large", ["candidates: 400000 are more than the 65536"]),
        ({"candidates": [[0]], "primitives": [["CI", 1]] * 70_000}, 413, "too_large", ["primitives: 70000"]),
        (
            {"candidates": [[["CI", n]] for n in range(17_000)], "primitives": None},
            413, "too_large", ["primitives: 17000 distinct ones are more than the 16384"],
        ),
        ({"candidates": [[0]], "format": 9}, 422, "unknown_format", ["format: this is wire format 1, not 9"]),
        ({"candidates": [[0]], "format": 9, "new": 1}, 422, "unknown_format", ["wire format 1, not 9"]),
        ({"candidates": [[0]], "format": "1"}, 422, "invalid", ["format: this is wire format 1, not '1'"]),
        ({"candidates": [[0]], "new": 1}, 422, "unknown_field", ["unknown field 'new'; known: format, task"]),
        ({"candidates": [[0]], "on_invalid": "repair"}, 422, "unsupported", ["on_invalid: 'reject' or 'report'"]),
    ],
)  # fmt: skip
def test_a_predict_body_that_is_json_but_wrong(server, changes, status, code, parts):
    check(server.post("/v1/predict", {**PREDICT, **changes}), status, code, *parts)


@pytest.mark.parametrize("route", ["/v1/predict", "/v1/measurements"])
@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (b'{"format": 1, "task": {"work', ["not JSON"]),
        (b"", ["not JSON"]),
        (b"\xff\xfe\x00", ["not UTF-8 at byte 0"]),
        (b"[" * 500_000, ["not JSON"]),
        (b'{"a": ' + b"9" * 5000 + b"}", ["not JSON"]),
    ],
    ids=["cut", "empty", "no UTF-8", "nested", "long number"],
)
def test_a_body_that_is_no_json(server, route, body, parts):
    check(server.post(route, body), 400, "malformed", *parts)


@pytest.mark.parametrize("route", ["/v1/predict", "/v1/measurements"])
@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_a_content_type_that_is_not_read(server, route, content_type):
    check(
        server.post(route, b"{}", content_type),
        400,
        "content_type",
        "application/json or application/x-ndjson",
    )


@pytest.mark.slow
@pytest.mark.parametrize("route", ["/v1/predict", "/v1/measurements"])
def test_a_body_of_200_megabytes(server, route):
    check(server.post(route, b" " * 200_000_000), 413, "too_large", "larger than the 8388608 bytes")


@pytest.mark.slow
def test_a_body_of_unknown_length_is_bounded_all_the_same(server):
    def chunks():
        for _ in range(200):
            yield b" " * 1_000_000

    status, _, answer = server.request("POST", "/v1/predict", chunks(), {"Content-Type": JSON})
    check((status, json.loads(answer)), 413, "too_large", "larger than")


@pytest.mark.slow
def test_a_gzip_bomb(server):
    bomb = gzip.compress(b" " * 1_000_000_000, compresslevel=9)
    assert len(bomb) < 1_000_000
    check(server.post("/v1/predict", bomb, **{"Content-Encoding": "gzip"}), 413, "too_large", "larger than")


def test_a_gzip_bomb_of_many_members(server):
    bomb = gzip.compress(b" " * 1_000_000) * 1000
    check(server.post("/v1/predict", bomb, **{"Content-Encoding": "gzip"}), 413, "too_large", "larger than")


@pytest.mark.parametrize(
    ("body", "encoding", "code", "part"),
    [
        (b"{}", "gzip", "malformed", "not gzip"),
        (gzip.compress(b"{}" * 1000)[:20], "gzip", "malformed", "cut"),
        (b"", "gzip", "malformed", "cut"),
        (gzip.compress(b"{}") + b"trailing", "gzip", "malformed", "not gzip"),
        (gzip.compress(b"") * 1023 + gzip.compress(b"{"), "gzip", "malformed", "not JSON"),
        # Each takes time however short it is: 8 MiB of empty ones kept the event loop for more than a second.
        (gzip.compress(b"") * 1024 + gzip.compress(b"{"), "gzip", "malformed", "at most 1024 members"),
        (b"{}", "br", "unsupported", "Content-Encoding: gzip or identity"),
    ],
)
def test_a_damaged_encoding(server, body, encoding, code, part):
    check(server.post("/v1/predict", body, **{"Content-Encoding": encoding}), 400, code, part)


def test_a_connection_that_closes_in_the_middle_of_its_body(server):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(
            b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 1000\r\n\r\n{"format": 1,'
        )


def test_garbage_instead_of_http(server):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" * 20)
        connection.settimeout(HANG_S)
        answer = connection.recv(1000)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.split(b"\r\n\r\n")[1]) == {
        "error": "Invalid HTTP request received.",
        "code": "malformed",
    }


def test_headers_without_end(server):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n")
        connection.settimeout(HANG_S)
        for _ in range(17):
            connection.sendall(b"X: " + b"x" * 4096 + b"\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/v1/predict", 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/metrics", 405),
        ("POST", "/v1/predict/", 404),
    ],
)
def test_a_route_that_is_none_answers_in_json_too(server, method, path, status):
    answered, _, body = server.request(method, path)
    check((answered, json.loads(body)), status, "http", f"{method} {path}")


def with_costs(measured_request, text):
    """The request with the costs of its second record replaced by `text`, which need not be JSON."""
    measured_request["records"][1]["record"]["r"][0] = ["COST"]
    return json.dumps(measured_request).replace('"COST"', text).encode()


@pytest.mark.parametrize(
    "cost", ["NaN", "Infinity", "-Infinity", "1e400", '"NaN"', "null", "-0.1", "0.0", "1e-12", "true"]
)
def test_a_cost_that_is_none(server, measured_request, cost):
    check(
        server.post("/v1/measurements", with_costs(measured_request, cost)),
        422,
        "invalid",
        "records[1]",
        "r[0]",
    )


def test_the_same_id_twice_in_a_request(server, measured_request):
    measured_request["records"][2]["id"] = measured_request["records"][0]["id"]
    check(
        server.post("/v1/measurements", measured_request),
        422,
        "invalid",
        "records[2]",
        "id 'r-0' is that of records[0]",
    )


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"records": []}, "records: a list of one or more"),
        ({"worker": None}, "worker: who measured"),
        ({"worker": "a" * 200}, "worker: 1 to 128"),
        ({"platform": "k80\n"}, "platform: 1 to 128"),
        ({"records": [{"id": "x", "record": {"i": 5}}]}, "records[0]: 'i' is a list of two"),
    ],
)
def test_a_measurement_body_that_is_json_but_wrong(server, measured_request, changes, part):
    check(server.post("/v1/measurements", {**measured_request, **changes}), 422, "invalid", part)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"format": 2}, "unknown_format"),
        ({"format": 2, "records": {"a": 1}}, "unknown_format"),
        ({"round": 7}, "unknown_field"),
        ({"on_invalid": "repair"}, "unsupported"),
    ],
)
def test_measurements_that_another_server_may_take_are_refused_as_such(
    server, measured_request, changes, code
):
    before = server.metric("tlp_measurement_stream_length")
    check(server.post("/v1/measurements", {"on_invalid": "report", **measured_request, **changes}), 422, code)
    assert server.metric("tlp_measurement_stream_length") == before


@pytest.mark.parametrize("on_invalid", ["report", "reject"])
def test_an_unknown_field_beside_one_record_refuses_the_request_and_rejects_no_record(
    server, measured_request, on_invalid
):
    before = server.metric("tlp_measurement_stream_length")
    measured_request["records"][1]["round"] = 7
    check(
        server.post("/v1/measurements", {**measured_request, "on_invalid": on_invalid}),
        422,
        "unknown_field",
        "records[1]: the entry: unknown field 'round'; known: id, record",
    )
    assert server.metric("tlp_measurement_stream_length") == before


def test_nothing_of_a_refused_request_is_kept(server, measured_request):
    before = server.metric("tlp_measurement_stream_length")
    server.post("/v1/measurements", with_costs(measured_request, "-1"))
    assert server.metric("tlp_measurement_stream_length") == before


@pytest.mark.parametrize("route", ["/v1/predict", "/v1/measurements"])
def test_a_query_parameter_beside_a_json_body_is_not_passed_over(server, route):
    check(server.post(f"{route}?platform=mars", PREDICT), 422, "unknown_field", "query parameter 'platform'")


@pytest.mark.parametrize(
    ("query", "code"), [("plaftorm=epyc", "unknown_field"), ("platform=epyc&platform=cpu", "invalid")]
)
@pytest.mark.parametrize("route", ["/v1/predict", "/v1/measurements"])
def test_a_query_parameter_that_a_log_does_not_take(server, route, query, code, measured_lines):
    body = measured_lines[0].encode()
    check(server.post(f"{route}?{query}", body, "application/x-ndjson"), 422, code, "query parameter")


@pytest.mark.parametrize(
    "text",
    ["auto_unroll_max_step$" + "9" * 5000, "x" * 100_000, "\ud800"],
    ids=["long number", "long", "no UTF-8"],
)
def test_a_text_of_any_kind_in_a_primitive(server, text):
    request = {
        **PREDICT,
        "primitives": [["PR", 1, 0, text]],
        "candidates": [[0]] * 500,
        "on_invalid": "report",
    }
    status, answer = server.post("/v1/predict", request)
    assert status == 200
    assert answer["scores"] == [None] * 500
    assert len(json.dumps(answer)) < 500 * 400


def test_a_target_without_end(server):
    task = {"workload_key": "[]", "target": "llvm " * 10_000}
    check(
        server.post("/v1/predict", {**PREDICT, "candidates": [[0]], "task": task}),
        422,
        "invalid",
        "task.target",
    )


def test_a_compressed_log_that_does_not_say_so(server, measured_lines):
    body = gzip.compress(measured_lines[0].encode())
    check(server.post("/v1/predict", body, "application/x-ndjson"), 422, "invalid", "Content-Encoding: gzip")


def test_an_empty_log(server):
    check(
        server.post("/v1/predict", b"\n# nothing\n", "application/x-ndjson"),
        422,
        "invalid",
        "holds no record",
    )


def test_a_query_parameter_that_is_no_name(server, measured_lines):
    body = measured_lines[0].encode()
    check(
        server.post("/v1/predict?platform=a%20b", body, "application/x-ndjson"),
        422,
        "invalid",
        "query parameter platform",
    )


def test_metric_labels_do_not_grow_with_what_callers_write(server):
    for n in range(50):
        server.get(f"/made/up/{n}")
    text = server.get("/metrics")[1].decode()
    assert "/made/up" not in text
    assert 'route="other",status="404"' in text


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, 400), length=st.integers(0, 8), inserted=st.binary(max_size=6))
def test_any_damage_to_a_body_has_a_defined_answer(server, measured_request, good, start, length, inserted):
    for route, document in (("/v1/predict", good[0]), ("/v1/measurements", measured_request)):
        whole = json.dumps(document).encode()
        at = start % len(whole)
        status, answer = server.post(route, whole[:at] + inserted + whole[at + length :])
        assert status in (200, 400, 404, 422), answer
        assert status == 200 or answer["error"]


def test_endless_trailers_after_a_body_are_431(server):
    head = (
        b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port)) as caller:
        caller.sendall(head + b"2\r\n{}\r\n0\r\nx: ")
        answer = b""
        for _ in range(200):
            try:
                caller.sendall(b"y" * 4096)
            except OSError:
                break
        while part := _received(caller):
            answer += part
    assert answer.startswith(b"HTTP/1.1 431")


def _received(caller):
    try:
        return caller.recv(4096)
    except OSError:
        return b""


#: The largest valid input of a kind, one that is larger by one, and the error for the latter.
TOO_LARGE = {
    "steps": ([["CI", 1]] * 512, [["CI", 1]] * 513, "513 primitives are more than the 512"),
    "sources": ([["FFSP", 0, 0, [0] * 16, 1, 1]], [["FFSP", 0, 0, [0] * 17, 1, 1]], "at most 16 entries, got 17"),
    "sizes": ([["FFSP", 0, 0, [0] * 16, 1, 1]] * 64, [["FFSP", 0, 0, [0] * 16, 1, 1]] * 65,
        "1040 sizes, which are more than the 1024"),
    "entries": ([["RE", 0, [0] * 256]], [["RE", 0, [0] * 257]], "at most 256 entries, got 257"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_a_candidate_may_not_be_more_than_what_anybody_can_afford_to_score(server, kind):
    """A valid body of 16 kB blocked the event loop for two seconds, and one of 129 kB the readers for a minute."""
    largest, larger, message = TOO_LARGE[kind]
    request = {**PREDICT, "candidates": [largest, larger]}
    request.pop("primitives", None)
    check(server.post("/v1/predict", request), 422, "invalid", "candidates[1]", message)
    status, answer = server.post("/v1/predict", {**request, "on_invalid": "report"})
    assert status == 200
    assert [error["candidate"] for error in answer["errors"] if message in error["error"]] == [1]


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_a_record_may_not_be_more_than_what_anybody_can_afford_to_read(
    server, kind, measured_request, measured_lines
):
    """The recorder and each training replay every accepted record."""
    largest, larger, message = TOO_LARGE[kind]
    for record, steps in zip(measured_request["records"], (largest, larger), strict=False):
        record["record"]["i"][1][1] = steps
        record["id"] += kind
    measured_request["records"][2]["id"] += kind
    check(server.post("/v1/measurements", measured_request), 422, "invalid", "records[1]", message)
    status, answer = server.post("/v1/measurements", {**measured_request, "on_invalid": "report"})
    assert (status, answer["accepted"]) == (200, 2)
    assert [(r["record"], message in r["error"]) for r in answer["rejected"]] == [(1, True)]


@pytest.mark.parametrize("is_large", [False, True], ids=["by pieces", "as a whole"])
def test_a_record_of_too_many_costs_or_bytes_is_rejected_by_itself(server, measured_request, is_large):
    costs, key, _ = measured_request["records"]
    costs["record"]["r"][0] = [0.001] * 1001
    key["record"]["i"][0][0] = "k" * 65_000
    for record in measured_request["records"]:
        record["id"] += f"-bytes-{is_large}"
    body = json.dumps({**measured_request, "on_invalid": "report"}).encode() + b" " * (2 << 20) * is_large
    status, answer = server.post("/v1/measurements", body)
    assert (status, answer["accepted"]) == (200, 1)
    assert [r["record"] for r in answer["rejected"]] == [0, 1]
    assert "1001 are more than the 1000 that a record may have" in answer["rejected"][0]["error"]
    assert "bytes, which are more than the 65536 that a record may have" in answer["rejected"][1]["error"]
