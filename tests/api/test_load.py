from tlp_service.settings import shipped_model

"""Many callers at once, over real sockets."""

import json
import math
import os
import socket
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from serving import HANG_S, indexed, request_of, start, until

from tlp_service.measurements.embedded import embedded_redis

pytestmark = pytest.mark.slow


def steps_of(lines):
    return [json.loads(line)["i"][1][1] for line in lines]


def enough_for(server, seconds):
    """Return how many times 64 candidates take this server so long."""
    return math.ceil(seconds * server.metric("tlp_candidates_per_second") / 64)


def in_threads(works):
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def send_300(server, lines, meanwhile=lambda answers: None):
    """Send 300 measurements at a time, and return the answers.

    An answer is the status, and the seconds after which to come again.
    """
    answers = []

    def send(number):
        document = json.loads(lines[number % 20])
        document["r"][3] = 1_700_000_000 + number  # each another measurement
        body, kind = json.dumps(document).encode(), {"Content-Type": "application/x-ndjson"}
        status, headers, _ = server.request("POST", "/v1/measurements?worker=many", body, kind)
        answers.append((status, headers.get("Retry-After")))

    in_threads([*(lambda n=n: send(n) for n in range(300)), lambda: meanwhile(answers)])
    return Counter(answers)


@pytest.mark.parametrize("wait_s", [HANG_S, 1])
def test_300_requests_at_a_time_wait_for_the_16_connections_to_redis(
    tmp_path, linear_version, measured_lines, wait_s
):
    """aio-libs aioredis #1113 and redis/redis-py #2792.

    A pool at its limit raised "Too many connections" and did not wait.

    Redis stands still, for less and for more than the seconds that a request waits for a connection.
    """
    with (
        embedded_redis(tmp_path / "outside") as url,
        start(tmp_path / "a", model=linear_version, redis_url=url, redis_wait_s=wait_s) as server,
        redis.Redis.from_url(url) as client,
    ):
        # The connection of this test, 16 for appends, and those of health checks, which do not wait behind appends.
        fewest = 1 + 16 + 1
        client.client_pause(HANG_S * 1000, all=False)
        is_long = wait_s == 1
        answers = send_300(
            server,
            measured_lines,
            lambda answers: (
                until(
                    lambda: (
                        client.info("clients")["connected_clients"] >= fewest
                        and len(answers) == 284 * is_long
                    )
                )
                and client.client_unpause()
            ),
        )
        kept = 16 if is_long else 300
        assert answers == {(200, None): kept} | ({(503, "2"): 284} if is_long else {})
        assert fewest <= client.info("clients")["connected_clients"] <= fewest + 3
        assert server.metric('tlp_measurements_total{outcome="accepted"}') == kept
        assert send_300(server, measured_lines) == {(200, None): 300}
        assert server.metric("tlp_measurement_stream_length") == 300


def test_a_small_request_is_answered_between_the_slices_of_large_ones(tmp_path, measured_lines):
    """Told by order, not by time: it comes last and leaves before any of the large ones."""
    steps = steps_of(measured_lines[:64])
    order = []
    # With TLP's network, whose inputs are made in no time: of `base` the first would leave while the last ones are
    # read.
    published = shipped_model("published")
    hold = tmp_path / "hold"
    with start(
        tmp_path / "stream",
        model=published,
        hold=hold,
        threads=1,
        chunk=64,
        max_waiting=1_000_000,
        max_waiting_mib=512,
    ) as server:
        small = json.dumps(indexed(steps[:16], 1)).encode()
        large = json.dumps(indexed(steps, 50)).encode()

        def ask(name, body):
            headers = {"Content-Type": "application/json", "tlp-client": name}
            order.append((name, server.request("POST", "/v1/predict", body, headers)[0]))

        hold.touch()
        asked = [(f"large-{n}", large) for n in range(8)] + [("small", small)]
        threads = [threading.Thread(target=ask, args=arguments) for arguments in asked]
        for count, thread in enumerate(threads, 1):
            thread.start()
            until(lambda count=count: server.metric("tlp_clients_waiting") == count)
        hold.unlink()
        for thread in threads:
            thread.join()
    assert order[0] == ("small", 200)
    assert [status for _, status in order] == [200] * 9


def test_what_cannot_be_scored_by_its_deadline_is_refused_before_that(tmp_path, measured_lines):
    steps = steps_of(measured_lines[:64])
    hold = tmp_path / "hold"
    with start(tmp_path / "stream", hold=hold) as server:
        body = json.dumps(indexed(steps, enough_for(server, 0.5))).encode()
        outcomes = []

        def ask(number):
            deadline_s = HANG_S if number == 0 else 3
            headers = {"Content-Type": "application/json", "tlp-client": f"w{number}"}
            headers["tlp-deadline-s"] = str(deadline_s)
            status, headers, _ = server.request("POST", "/v1/predict", body, headers)
            outcomes.append((status, headers.get("Retry-After")))

        hold.touch()
        threads = [threading.Thread(target=ask, args=(n,)) for n in range(24)]
        for thread in threads:
            thread.start()
        until(lambda: len(outcomes) > 12)  # more than fit into three seconds
        hold.unlink()
        for thread in threads:
            thread.join()
        statuses = [status for status, _ in outcomes]
        assert statuses.count(200) >= 1
        assert statuses.count(429) >= 1
        assert set(statuses) <= {200, 429, 504}
        # Told at once: they are the first to be answered.
        assert 429 in statuses[: len(statuses) // 2]
        assert all(int(retry) >= 1 for status, retry in outcomes if status == 429)
        assert server.metric("tlp_candidates_waiting") == 0


def post_by_hand(server, body, length=None, path="/v1/predict", kind="application/json"):
    """Return a socket on which a request was sent, and not what is answered."""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {length or len(body)}\r\n\r\n"
    caller = socket.create_connection(("127.0.0.1", server.port))
    caller.sendall(head.encode() + body)
    return caller


def test_a_caller_who_leaves_takes_what_waits_along(tmp_path, measured_lines):
    steps = steps_of(measured_lines[:64])
    hold = tmp_path / "hold"
    with start(tmp_path / "stream", hold=hold, threads=1, chunk=16) as server:
        body = json.dumps(indexed(steps, 1)).encode()
        hold.touch()
        with post_by_hand(server, body):
            until(lambda: server.metric("tlp_clients_waiting") == 1)
        until(lambda: server.metric('tlp_requests_total{route="/v1/predict",status="499"}'))
        until(lambda: server.metric("tlp_candidates_waiting") == 0)
        hold.unlink()
        assert server.post("/v1/predict", request_of(steps))[0] == 200


def test_a_worker_who_leaves_while_its_measurements_are_read_ends_that(tmp_path, linear_version):
    """8 MiB were read to their end, and kept, for a client that sends them again."""
    records = [
        {"i": [["[]", "llvm"], [[], [["CI", 400 * n + k] for k in range(400)]]], "r": [[1], 0, 1, n], "v": "v0.6"}
        for n in range(1200)
    ]  # fmt: skip
    body = "\n".join(map(json.dumps, records)).encode()
    with start(tmp_path / "stream", model=linear_version) as server:
        with post_by_hand(server, body, path="/v1/measurements?platform=p", kind="application/x-ndjson"):
            pass
        ends = 'tlp_requests_total{route="/v1/measurements",status="%d"}'
        until(lambda: server.metric(ends % 499) or server.metric(ends % 200))
        assert server.metric(ends % 499) == 1
        assert server.metric("tlp_measurement_stream_length") == 0
        assert server.post("/v1/measurements?platform=p", body, "application/x-ndjson")[1]["accepted"] == 1200


def test_callers_who_leave_while_their_bodies_are_read_leave_no_threads(tmp_path, linear_version, good):
    nested = json.dumps(request_of([[["CI", n]] for n in range(40_000)])).encode()
    with start(tmp_path / "stream", model=linear_version) as server:
        before = len(list(Path(f"/proc/{server.process.pid}/task").iterdir()))
        for _ in range(20):
            post_by_hand(server, nested).close()
        assert server.post("/v1/predict", good[0])[0] == 200
        assert len(list(Path(f"/proc/{server.process.pid}/task").iterdir())) <= before + 2
        # A fast server answers some of them before it notices that the client has disconnected.
        until(
            lambda: (
                sum(
                    server.metric(f'tlp_requests_total{{route="/v1/predict",status="{s}"}}') or 0
                    for s in (200, 499)
                )
                == 21
            )
        )


def test_a_deadline_holds_while_the_body_arrives(tmp_path, linear_version):
    with start(tmp_path / "stream", model=linear_version) as server:
        head = (
            "POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            "content-length: 1000\r\ntlp-deadline-s: 0.2\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_S) as caller:
            caller.sendall(head.encode() + b"{")
            assert caller.recv(1000).startswith(b"HTTP/1.1 504 ")


def test_millions_of_lists_are_413(tmp_path, linear_version):
    body = b'{"format":1,"candidates":[' + b"[]," * 2_000_000 + b"[]]}"
    with start(tmp_path / "stream", model=linear_version) as server:
        status, answer = server.post("/v1/predict", body)
    assert (status, answer["code"]) == (413, "too_large")
    assert "at most 80 MiB when decoded (TLP_MAX_DECODED_MIB)" in answer["error"]


def test_the_bodies_of_all_callers_are_bounded_together(tmp_path, linear_version, good):
    large = json.dumps({**good[0], "candidates": [[0, 1]] * 60_000}).encode() + b" " * (900 << 10)
    with start(tmp_path / "stream", model=linear_version, max_waiting_mib=2) as server:
        assert server.post("/v1/predict", large)[0] == 200  # one alone may take what a request may
        with post_by_hand(server, b" " * (1 << 19), length=1 << 20):
            assert server.post("/v1/predict", large)[0] == 200  # beside small ones, too
        until(lambda: server.metric('tlp_requests_total{route="/v1/predict",status="400"}') == 1)
        stalled = post_by_hand(server, b" " * (5 << 20), length=6 << 20)

        def is_refused():
            """Ask again with another stalled body: the previous one may have been too late and been refused."""
            nonlocal stalled
            if server.post("/v1/predict", large)[0] == 429:
                return True
            stalled.close()
            stalled = post_by_hand(server, b" " * (5 << 20), length=6 << 20)
            return False

        try:
            until(is_refused)
            status, answer = server.post("/v1/predict", large)
            assert (status, answer["code"]) == (429, "queue_full")
            assert "memory" in answer["error"]
            assert server.post("/v1/predict", good[0])[0] == 200
        finally:
            stalled.close()
        until(lambda: server.post("/v1/predict", large)[0] == 200)


@pytest.mark.parametrize(
    ("header", "value"), [("tlp-client", "a b"), ("tlp-client", "x" * 129), ("tlp-cached", "-1"),
        ("tlp-cached", "1.5"), ("tlp-cached", "²"), ("tlp-candidates", "many")]
)  # fmt: skip
def test_headers_that_make_no_sense_are_422(server, good, header, value):
    headers = {"Content-Type": "application/json", header: value.encode()}
    status, _, body = server.request("POST", "/v1/predict", json.dumps(good[0]).encode(), headers)
    assert status == 422
    assert f"header {header}: " in json.loads(body)["error"]


@pytest.mark.parametrize(
    ("stated", "counted"),
    [("7", 7), ("0000000000007", 7), ("65537", 65536), ("999999999", 65536), ("9" * 310, 65536), ("9" * 5000, 65536)],
)  # fmt: skip
def test_a_client_adds_to_the_cached_candidates_at_most_what_a_request_may_hold(
    server, good, stated, counted
):
    before = server.metric("tlp_candidates_cached_total")
    for header in ("tlp-cached", "tlp-candidates"):
        assert server.post("/v1/predict", good[0], **{header: stated})[0] == 200
    assert server.metric("tlp_candidates_cached_total") == before + counted


@pytest.mark.parametrize("stated", ["1e300", "1" * 300, "9999999999"])
def test_a_deadline_that_no_clock_reaches_is_none(server, good, stated):
    assert server.post("/v1/predict", good[0], **{"tlp-deadline-s": stated})[0] == 200


@pytest.mark.parametrize("stated", ["1" * 310, "1e400", "nan", "inf", "-1", "0", "1e-400"])
def test_a_deadline_that_is_no_number_of_seconds_is_422(server, good, stated):
    status, answer = server.post("/v1/predict", good[0], **{"tlp-deadline-s": stated})
    assert (status, answer["code"]) == (422, "invalid")


def test_the_way_it_scores_is_told(server):
    (model,) = json.loads(server.get("/v1/models")[1])["models"]
    calibration = model["calibration"]
    assert calibration["precision"] == "fp32"
    assert calibration["executors"] * calibration["threads"] <= len(os.sched_getaffinity(0))
    assert calibration["chunk"] in (16, 32, 64, 128)
    assert calibration["candidates_per_s"] > 0
    assert server.metric("tlp_candidates_per_second") > 0


def test_the_provider_is_told(server):
    assert server.metric('tlp_execution_provider{provider="CPUExecutionProvider"}') == 1
    assert json.loads(server.get("/health/ready")[1])["provider"] == "CPUExecutionProvider"


@pytest.mark.parametrize("cpus", [1, 2])
def test_the_threads_are_those_of_the_cpus_and_not_of_the_host(tmp_path, linear_version, cpus):
    """Two servers of two CPUs each compute with four threads, whatever machine they are on."""
    before = os.sched_getaffinity(0)
    if len(before) < cpus:
        pytest.skip("too few CPUs")
    with ExitStack() as stack:
        os.sched_setaffinity(0, sorted(before)[:cpus])
        try:
            servers = [stack.enter_context(start(tmp_path / n, model=linear_version)) for n in ("one", "two")]
        finally:
            os.sched_setaffinity(0, before)
        for server in servers:
            calibration = json.loads(server.get("/v1/models")[1])["models"][0]["calibration"]
            assert calibration["executors"] * calibration["threads"] == cpus


def test_four_servers_on_one_stream_answer_200_requests_each(tmp_path, linear_version, good):
    """Each process makes its own sessions and threads; none is inherited."""
    outcomes = Counter()

    def ask(server):
        for _ in range(50):
            status, answer = server.post("/v1/predict", good[0])
            outcomes[status, answer["scores"] == pytest.approx(good[1])] += 1

    with ExitStack() as stack:
        url = stack.enter_context(embedded_redis(tmp_path / "shared"))
        servers = [
            stack.enter_context(start(tmp_path / f"server-{n}", model=linear_version, redis_url=url))
            for n in range(4)
        ]
        in_threads([lambda s=s: ask(s) for s in servers for _ in range(4)])
    assert outcomes == {(200, True): 800}


def test_the_longest_records_are_cropped_counted_and_score_alike_alone_and_in_company(server, measured_lines):
    """70 steps, 35 numbers in a step: beyond what the published rows hold."""
    longest = [["RE", 2, list(range(35))]] + [["SP", n % 20, 0, 64, [4, 4, 4], 1] for n in range(69)]
    candidates = [longest, *steps_of(measured_lines[:5]), longest[:25]]
    before = server.metric("tlp_candidates_truncated_total")
    together = server.post("/v1/predict", request_of(candidates))[1]["scores"]
    assert server.metric("tlp_candidates_truncated_total") == before + 1
    alone = [server.post("/v1/predict", request_of([c]))[1]["scores"][0] for c in candidates]
    assert together == pytest.approx(alone, rel=1e-5)
    assert together[0] == together[-1]  # what counts are the first 25 steps
