"""The connection over a fake transport: pinning, retry, deadline, breaker. No sockets, no waiting."""

import json

import pytest

from tlp_client.breaker import CircuitBreaker
from tlp_client.connection import Connection, Round
from tlp_client.errors import BadAnswer, DeadlineExceeded, InvalidRequest, Refused, ServiceError, Unreachable
from tlp_client.tasks import Task
from tlp_client.transport import HttpAnswer

TASK = Task("[]", "llvm")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Script:
    """A transport that plays a list of answers and exceptions, each taking `cost` seconds."""

    def __init__(self, clock, *moves, cost=0.01):
        self.clock, self.moves, self.cost = clock, list(moves), cost
        self.requests = []

    def post(self, path, body, headers, timeout_s):
        self.requests.append((path, json.loads(body), headers, timeout_s))
        self.clock.now += min(self.cost, timeout_s)
        move = self.moves.pop(0)
        if isinstance(move, Exception):
            raise move
        return move


def scores(version="v1", count=1):
    body = {"format": 1, "model": "m", "version": version, "scores": [0.5] * count, "errors": []}
    return HttpAnswer(200, {}, json.dumps(body).encode())


def refusal(status, code="", **headers):
    return HttpAnswer(status, headers, json.dumps({"error": f"refused {status}", "code": code}).encode())


def connect(*moves, cost=0.01, **options):
    clock = Clock()
    script = Script(clock, *moves, cost=cost)
    breaker = CircuitBreaker(clock=clock)
    connection = Connection(
        "http://x", transport=script, breaker=breaker, clock=clock, sleep=clock.sleep, **options
    )
    return connection, script, clock


def predict(connection, round_=None):
    return connection.predict(TASK, ['["CI", 1]'], [[0]], round_ or Round())


def test_the_service_hears_who_asks_and_what_was_not_asked_for():
    connection, script, _ = connect(scores(), scores(), client="host-7")
    predict(connection)
    connection.predict(TASK, [], [[]], Round(), cached=12)
    headers = [headers for _, _, headers, _ in script.requests]
    assert [h["tlp-client"] for h in headers] == ["host-7", "host-7"]
    assert [h["tlp-cached"] for h in headers] == ["0", "12"]
    assert [h["tlp-candidates"] for h in headers] == ["1", "1"]


def asked_versions(script):
    return [body["version"] for _, body, _, _ in script.requests]


def test_the_version_of_the_first_answer_is_asked_for_in_its_round():
    connection, script, _ = connect(scores("v1"), scores("v1"), scores("v2"), scores("v2"))
    for round_ in (Round(), Round()):
        for _ in range(2):
            predict(connection, round_)
    assert asked_versions(script) == [None, "v1", None, "v2"]
    assert (round_.version, round_.is_answered) == ("v2", True)


def test_rounds_of_two_tasks_do_not_disturb_each_other():
    connection, script, _ = connect(scores("v1"), scores("v2"), scores("v1"))
    first, second = Round(), Round()
    for round_ in (first, second, first):
        predict(connection, round_)
    assert asked_versions(script) == [None, None, "v1"]


@pytest.mark.parametrize(("status", "code"), [(404, "unknown_version"), (409, "version_gone")])
def test_a_version_that_is_gone_is_never_replaced_within_a_round(status, code):
    connection, _, _ = connect(scores("v1"), refusal(status, code), scores("v2"))
    round_ = Round()
    predict(connection, round_)
    with pytest.raises(Refused):
        predict(connection, round_)
    assert round_.version == "v1"


@pytest.mark.parametrize(("status", "code"), [(404, "unknown_version"), (409, "version_gone")])
def test_a_version_that_is_gone_before_its_round_began_is_replaced(status, code):
    connection, script, _ = connect(refusal(status, code), scores("v2"))
    round_ = Round("v1")
    assert predict(connection, round_).version == "v2"
    assert asked_versions(script) == ["v1", None]
    assert round_.version == "v2"


def test_an_unknown_platform_is_left_out_until_the_next_round(caplog):
    unknown = refusal(404, "unknown_platform")
    connection, script, _ = connect(
        unknown, scores(), scores(), unknown, scores(), scores("v2"), platform="new"
    )
    first = Round()
    for round_ in (first, first, Round(), Round()):
        predict(connection, round_)
    asked = [body["task"]["platform"] for _, body, _, _ in script.requests]
    assert asked == ["new", None, None, "new", None, "new"]  # the last version knows it
    assert len(caplog.records) == 1


@pytest.mark.parametrize("platform", ["RTX 3080", "", "a" * 200])
def test_a_platform_that_is_no_name_is_refused_at_once(platform):
    with pytest.raises(InvalidRequest, match="platform: "):
        Connection("http://x", platform=platform)


@pytest.mark.parametrize("first", [Unreachable("x"), refusal(503), refusal(429), refusal(500), refusal(504)])
def test_a_passing_fault_is_tried_once_more(first):
    connection, script, _ = connect(first, scores())
    assert predict(connection).scores == [0.5]
    assert len(script.requests) == 2


def test_the_second_fault_is_raised():
    connection, script, _ = connect(Unreachable("first"), Unreachable("second"))
    with pytest.raises(Unreachable, match="second"):
        predict(connection)
    assert len(script.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_a_fault_of_the_request_is_not_tried_again(status):
    connection, script, _ = connect(refusal(status))
    with pytest.raises(Refused, match=f"{status}: refused {status}"):
        predict(connection)
    assert len(script.requests) == 1


def test_retry_after_is_followed_where_the_deadline_allows():
    connection, script, clock = connect(refusal(429, **{"retry-after": "2"}), scores(), deadline_s=10)
    predict(connection)
    assert clock.now == pytest.approx(2 + 2 * 0.01)
    connection, script, clock = connect(refusal(429, **{"retry-after": "20"}), deadline_s=10)
    with pytest.raises(Refused):
        predict(connection)
    assert len(script.requests) == 1
    assert clock.now < 1


@pytest.mark.parametrize(
    "stated",
    ["1" * 310, "1" * 5000, "inf", "nan", "-inf", "-5", "1e400", "Fri, 31 Dec 1999 23:59:59 GMT", ""],
)
def test_a_retry_after_that_no_clock_can_add_is_passed_over(stated):
    connection, script, clock = connect(refusal(429, **{"retry-after": stated}), scores(), deadline_s=10)
    predict(connection)
    assert len(script.requests) == 2
    assert clock.now == pytest.approx(0.1 + 2 * 0.01)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (422, "unknown_format"),
        (422, "unknown_field"),
        (422, "a_code_of_a_later_server"),
        (404, "a_code_of_a_later_server"),
        (409, "a_code_of_a_later_server"),
        (418, "teapot"),
        (451, ""),
        (599, "a_code_of_a_later_server"),
    ],
)
def test_an_answer_that_this_client_does_not_know_is_taken_by_its_status(status, code):
    connection, script, _ = connect(*[refusal(status, code)] * 3, platform="epyc")
    for _ in range(3):
        with pytest.raises(Refused) as refused:
            predict(connection, Round("v1"))
        assert (refused.value.status, refused.value.code) == (status, code)
        assert refused.value.remedy
    assert len(script.requests) == 3  # the breaker stays closed, since the service did not fail


@pytest.mark.parametrize(
    "document",
    [
        {"error": "x" * 10**6, "code": "y" * 10**6},
        {"error": ["x"] * 10**6, "code": 10**310},
        {"error": {"detail": None}},
    ],
)
def test_an_error_of_any_kind_and_size_is_short_in_the_log(document):
    connection, _, _ = connect(HttpAnswer(422, {}, json.dumps(document).encode()))
    with pytest.raises(Refused) as refused:
        predict(connection)
    assert len(str(refused.value)) < 1100
    assert len(refused.value.code) <= 1000


def test_measurements_count_as_sent_only_if_the_answer_accounts_for_them():
    good = {"format": 1, "accepted": 1, "duplicates": 0, "rejected": []}
    answers = [HttpAnswer(200, {}, json.dumps({**good, **c}).encode()) for c in ({}, {"accepted": 2})]
    connection, _, _ = connect(*answers)
    assert connection.send([("a", "{}")], worker="w", version=None).accepted == 1
    with pytest.raises(BadAnswer, match="accounts for 2 of 1 records"):
        connection.send([("a", "{}")], worker="w", version=None)


def test_each_try_gets_what_is_left_of_the_deadline():
    connection, script, _ = connect(refusal(503), scores(), cost=0.3, deadline_s=1)
    predict(connection)
    (_, _, headers, first), (_, _, _, second) = script.requests
    assert (first, headers["tlp-deadline-s"]) == (1, "1.000")
    assert second == pytest.approx(1 - 0.3 - 0.1)


def test_no_second_try_after_the_deadline():
    connection, script, clock = connect(Unreachable("slow"), cost=5, deadline_s=0.2)
    with pytest.raises(ServiceError):
        predict(connection)
    assert len(script.requests) == 1
    assert clock.now <= 0.2


def test_after_three_failures_the_service_is_not_asked_for_a_while():
    connection, script, clock = connect(*[Unreachable("down")] * 6, scores())
    for _ in range(3):
        with pytest.raises(Unreachable):
            predict(connection)
    with pytest.raises(Unreachable, match="not asked"):
        predict(connection)
    assert len(script.requests) == 6
    clock.now += 2
    assert predict(connection).scores == [0.5]
    assert len(script.requests) == 7


def test_a_fault_of_the_request_does_not_open_the_breaker():
    connection, _, _ = connect(*[refusal(422)] * 5, scores())
    for _ in range(5):
        with pytest.raises(Refused):
            predict(connection)
    assert predict(connection).scores == [0.5]


@pytest.mark.parametrize(
    "answer",
    [
        HttpAnswer(200, {}, b"<html>"),
        HttpAnswer(204, {}, b""),
        HttpAnswer(302, {}, b"elsewhere"),
        scores(count=2),
    ],
)
def test_an_answer_that_is_none_is_a_failure(answer):
    connection, _, _ = connect(answer)
    with pytest.raises(BadAnswer):
        predict(connection)


@pytest.mark.parametrize("body", [b"<html>bad gateway</html>", b"", b"[]", b'{"error": 1}', b"\xff"])
def test_a_refusal_with_a_body_of_anybody_is_a_refusal(body):
    connection, _, _ = connect(HttpAnswer(502, {"retry-after": "soon"}, body), HttpAnswer(502, {}, body))
    with pytest.raises(Refused) as refused:
        predict(connection)
    assert refused.value.status == 502


@pytest.mark.parametrize("deadline_s", [0, -1, float("nan"), float("inf"), 1e10, "10", None])
def test_a_deadline_that_is_none_is_refused_at_once(deadline_s):
    with pytest.raises(ValueError, match="deadline_s: seconds above 0"):
        Connection("http://x", deadline_s=deadline_s)


def test_the_deadline_passed_before_the_second_exchange():
    connection, _, _ = connect(refusal(404, "unknown_version"), cost=3, deadline_s=2)
    with pytest.raises(DeadlineExceeded, match="no time left"):
        predict(connection, Round("v0"))
