from starlette.requests import Request

from tlp_service.api.refusals import RefusalLog


def request(client=b"w"):
    headers = [(b"tlp-client", client), (b"authorization", b"Bearer s3cret")]
    scope = {"type": "http", "method": "GET", "path": "/x", "headers": headers, "client": ("10.1.2.3", 5)}
    return Request(scope)


def test_refusals_are_logged_with_who_and_never_with_what_was_sent(caplog):
    RefusalLog().note(request(), 401, "wrong key")
    RefusalLog().note(request(b"a b\x1b[0m"), 401, "wrong key")
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "refused with 401: GET other from 10.1.2.3, client 'w': wrong key",
        "refused with 401: GET other from 10.1.2.3, client None: wrong key",
    ]


def test_a_flood_makes_few_lines_which_say_how_many_they_stand_for(caplog):
    now = [0.0]
    refusals = RefusalLog(lambda: now[0])
    for _ in range(1000):
        refusals.note(request(), 401, "no key")
    assert len(caplog.records) == 20
    now[0] = 10.0
    refusals.note(request(), 401, "no key")
    refusals.note(request(), 401, "no key")
    assert [r.getMessage().partition("no key")[2] for r in caplog.records[20:]] == [
        " (980 earlier refusals were not logged)"
    ]
