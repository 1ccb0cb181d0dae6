"""HTTP requests with a deadline. Tests replace the transport with a fake."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError, LocationParseError, NewConnectionError, TimeoutError
from urllib3.util import Url, parse_url

from tlp_client.errors import BadAnswer, DeadlineExceeded, Unreachable
from tlp_client.fork import call_in_child

#: Maximum bytes of an answer. An answer has one score per candidate, so the service never sends more than
#: this.
_MAX_ANSWER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status, headers (names in lower case) and whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    """Sends one request."""

    def post(self, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> HttpAnswer:
        """Return the answer, or raise `Unreachable` or `DeadlineExceeded`, within `timeout_s` seconds."""


class HttpTransport:
    """Keep-alive connections to one server; thread-safe.

    Parameters
    ----------
    url : str
        Such as ``http://host:8000``; a path in it is kept as a prefix.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        try:
            parsed = parse_url(url)
        except LocationParseError:
            parsed = Url()
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
            raise ValueError(f"the URL of the service is http://host:port or https://host, not {url!r}")
        self._url = url.rstrip("/")
        self._clock = clock
        self._connect_anew()
        # A child of fork must not share its parent's sockets: each would read the other's answers.
        call_in_child(self._connect_anew)

    def _connect_anew(self) -> None:
        self._pool = urllib3.PoolManager(maxsize=32, retries=False)
        self._pool.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}

    def post(self, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> HttpAnswer:
        """Send a request and read the whole answer, see `Transport.post`."""
        # A socket timeout bounds each read, but neither the DNS lookup nor a server that sends its headers
        # byte by byte. Running the exchange in a thread that can be abandoned bounds all of them.
        exchange = _Exchange(
            self._clock() + timeout_s, lambda of: self._post(path, body, headers, timeout_s, of)
        )
        exchange.start()
        exchange.join(timeout_s)
        return exchange.result(f"{self._url}{path}: no whole answer within {timeout_s:.3g} s")

    def _post(
        self, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float, exchange: _Exchange
    ) -> HttpAnswer:
        try:
            response = self._pool.request(
                "POST",
                self._url + path,
                body=body,
                headers=dict(headers),
                timeout=urllib3.Timeout(total=timeout_s),
                preload_content=False,
                redirect=False,
            )
            try:
                if response.status < 200:
                    # The final answer follows on this connection. The next request must not take it for its
                    # own.
                    raise BadAnswer(
                        f"{self._url}: expected a final answer, got the interim status {response.status}"
                    )
                received = self._read(response, exchange)
                exchange.release()
            except BaseException:
                response.close()  # the next request must not read the rest of this answer
                raise
            response.release_conn()
        except NewConnectionError as error:  # a subclass of TimeoutError in urllib3
            raise Unreachable(f"{self._url}: {error}") from None
        except TimeoutError:
            raise DeadlineExceeded(f"{self._url}{path}: no answer within {timeout_s:.3g} s") from None
        except (HTTPError, OSError) as error:
            raise Unreachable(f"{self._url}: {error}") from None
        return HttpAnswer(response.status, {k.lower(): v for k, v in response.headers.items()}, received)

    def _read(self, response: urllib3.BaseHTTPResponse, exchange: _Exchange) -> bytes:
        parts: list[bytes] = []
        size = 0
        while part := response.read1(1 << 16):
            parts.append(part)
            size += len(part)
            if self._clock() > exchange.deadline:
                raise DeadlineExceeded(f"{self._url}: the answer is not whole by the deadline")
            if size > _MAX_ANSWER_BYTES:
                raise BadAnswer(f"{self._url}: the answer is larger than {_MAX_ANSWER_BYTES} bytes")
        return b"".join(parts)


class _Exchange(threading.Thread):
    """A thread that sends one request and reads its answer; it ends soon after it is abandoned.

    Parameters
    ----------
    deadline : float
        Time at which the exchange is abandoned, by the clock of the transport.
    post : callable
        Performs the exchange; its argument is this object.
    """

    def __init__(self, deadline: float, post: Callable[[_Exchange], HttpAnswer]) -> None:
        super().__init__(name="tlp-exchange", daemon=True)
        self.deadline = deadline
        self._post = post
        self._answer: HttpAnswer | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_given_up = False

    def run(self) -> None:
        """Perform the exchange, and store its answer or exception."""
        try:
            self._answer = self._post(self)
        except BaseException as error:  # noqa: BLE001  it is raised again where the answer is asked for
            self._error = error
        finally:
            del self._post

    def use(self, socket_: socket.socket | None) -> None:
        """Register the socket of this exchange; it is shut down when the exchange is abandoned."""
        with self._lock:
            self._socket = socket_
            self._end()

    def release(self) -> None:
        """Release the socket, so that the next exchange may use it."""
        with self._lock:
            if self._is_given_up:
                raise DeadlineExceeded("the answer came after the deadline")
            self._socket = None

    def result(self, late: str) -> HttpAnswer:
        """Return the answer or raise the error; if there is neither, abandon it with `DeadlineExceeded`."""
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error  # breaks a reference cycle that would keep the socket open
        if self._answer is None:
            with self._lock:
                self._is_given_up = True
                self._end()
            raise DeadlineExceeded(late)
        return self._answer

    def _end(self) -> None:
        # A server that sends byte by byte never exceeds the socket timeout. Without a shutdown, thread and
        # socket would leak.
        if self._is_given_up and self._socket is not None:
            with suppress(OSError):
                # The base class's method, because that of a TLS socket is not thread-safe.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _Used:
    """A connection that registers its socket with the exchange of the current thread."""

    sock: Any

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]  # of the connection that this is mixed into
        self._tell()

    def request(self, *arguments: Any, **options: Any) -> None:
        self._tell()  # for a keep-alive connection; a new one has no socket yet
        super().request(*arguments, **options)  # type: ignore[misc]  # as above

    def _tell(self) -> None:
        exchange = threading.current_thread()
        if isinstance(exchange, _Exchange):
            exchange.use(self.sock)


class _Connection(_Used, HTTPConnection):
    pass


class _TlsConnection(_Used, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection
