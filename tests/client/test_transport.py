"""The HTTP transport against servers that misbehave, over real sockets."""

import contextlib
import gc
import os
import socket
import threading

import pytest
from serving import HANG_S, until

from tlp_client.errors import BadAnswer, DeadlineExceeded, ServiceError, Unreachable
from tlp_client.transport import HttpTransport


@contextlib.contextmanager
def server(*behaviours):
    """Serve one connection after the other, each by the next behaviour; yield the URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()
    held = []

    def run():
        for behave in behaviours:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            held.append(connection)
            with contextlib.suppress(OSError):
                behave(connection, stop)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        listener.close()
        for connection in held:
            connection.close()
        thread.join(HANG_S)


def post(url, timeout_s=HANG_S):
    return HttpTransport(url).post("/v1/predict", b"{}", {}, timeout_s)


def replies(data):
    def behave(connection, stop):
        connection.recv(65536)
        connection.sendall(data)
        connection.close()

    return behave


def test_a_whole_answer_is_returned():
    with server(replies(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nRetry-After: 3\r\n\r\nok")) as url:
        answer = post(url)
    assert (answer.status, answer.body, answer.headers["retry-after"]) == (200, b"ok", "3")


def test_the_connection_is_kept():
    def two_on_one_connection(connection, stop):
        for _ in range(2):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with server(two_on_one_connection) as url:
        transport = HttpTransport(url)
        assert [transport.post("/", b"", {}, HANG_S).body for _ in range(2)] == [b"ok", b"ok"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal",
        b"garbage\r\n\r\n",
    ],
    ids=["closed socket", "half-sent body", "half-sent chunk", "no HTTP"],
)
def test_an_answer_that_breaks_off_is_unreachable(data):
    with server(replies(data)) as url, pytest.raises(Unreachable):
        post(url)


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unreachable):
        post(f"http://127.0.0.1:{port}")


def test_a_server_that_sleeps_costs_no_more_than_the_timeout():
    """The server sleeps until the client has given up, so a client that waits would wait for ever."""
    with (
        server(lambda connection, stop: stop.wait(HANG_S)) as url,
        pytest.raises(DeadlineExceeded),
    ):
        post(url, timeout_s=0.2)


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "],
    ids=["body", "header"],
)
def test_a_server_that_drips_costs_no_more_than_the_timeout(head):
    def drip(connection, stop):
        connection.recv(65536)
        connection.sendall(head)
        while not stop.wait(0.05):
            connection.sendall(b"x")

    with server(drip) as url, pytest.raises(DeadlineExceeded):
        post(url, timeout_s=0.3)


def test_a_broken_connection_is_not_used_again():
    good = replies(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    with server(replies(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"), good) as url:
        transport = HttpTransport(url)
        with pytest.raises(Unreachable):
            transport.post("/", b"", {}, HANG_S)
        assert transport.post("/", b"", {}, HANG_S).body == b"ok"


@pytest.mark.parametrize(
    "url",
    [
        "host:8000",
        "http://",
        "ftp://host",
        "http://[::1",
        "http://host:99999",
        "http://host?x=1",
        "http://host#x",
    ],
)
def test_a_url_that_cannot_be_a_services_is_refused_at_once(url):
    with pytest.raises(ValueError, match="the URL of the service is"):
        HttpTransport(url)


def test_a_child_of_fork_has_connections_of_its_own():
    with server(replies(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")) as url:
        transport = HttpTransport(url)
        transport.post("/", b"", {}, HANG_S)
        assert len(transport._pool.pools) == 1
        pid = os.fork()
        if pid == 0:
            os._exit(len(transport._pool.pools))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert len(transport._pool.pools) == 1


def test_what_follows_an_interim_answer_is_never_taken_for_that_of_the_next_request():
    """Scores of another request, or an answer that accounts for other measurements, which would then be deleted."""

    def hints_and_answers_late(connection, stop):
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        if connection.recv(65536):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none")

    second = replies(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo")
    with server(hints_and_answers_late, second) as url:
        transport = HttpTransport(url)
        # Some Python releases skip interim answers, and find no other after this one.
        with pytest.raises(ServiceError):
            transport.post("/v1/predict", b"{}", {}, 2.0)
        assert transport.post("/v1/predict", b"{}", {}, 60.0).body == b"two"


def test_an_answer_of_no_final_status_is_none():
    with server(replies(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")) as url, pytest.raises(BadAnswer):
        post(url, 60.0)


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n{}",
        b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n",
        HEAD + b"Content-Length: 2, 3\r\n\r\n{}",
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 5000 + b"\r\nab\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nab\r\n",
        HEAD + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        HEAD + b"a: b\r\n" * 300 + b"\r\n{}",
    ],
    ids=lambda data: f"{data[:40]!r}... {len(data)} bytes",
)
def test_whatever_is_sent_for_an_answer_is_an_error_of_the_service(data):
    with server(replies(data)) as url, pytest.raises(ServiceError):
        post(url, 60.0)


def test_a_failed_exchange_leaves_no_socket_to_the_garbage_collector():
    """A worker retries while the service is down, possibly without any garbage collection in between."""
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        with server(*[replies(HEAD + b"Content-Length: 2, 3\r\n\r\n{}")] * 10) as url:
            transport = HttpTransport(url)
            for _ in range(10):
                with pytest.raises(ServiceError):
                    transport.post("/v1/predict", b"{}", {}, 60.0)
        assert len(os.listdir("/proc/self/fd")) < before + 10
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (HEAD + b"X: ", b"x"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (HEAD + b"Content-Length: 1000\r\n\r\n", b"x"),
        (HEAD + b"Connection: close\r\n\r\n", b"x"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;", b"x"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", b"x"),
    ],
    ids=["header", "interim answers", "body", "body until close", "size of a chunk", "trailer"],
)
def test_an_exchange_that_was_given_up_leaves_no_thread_and_no_socket(head, drop):
    """A server, or a proxy, that drips for ever held a thread and a socket of each request."""
    is_gone = threading.Event()

    def drip(connection, stop):
        connection.recv(65536)
        try:
            connection.sendall(head)
            while not stop.wait(0.02):
                connection.sendall(drop)
        except OSError:
            is_gone.set()

    with server(drip) as url:
        with pytest.raises(DeadlineExceeded):
            post(url, timeout_s=0.3)
        until(lambda: not any(t.name == "tlp-exchange" for t in threading.enumerate()))
        until(is_gone.is_set)
