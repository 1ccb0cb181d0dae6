"""One HTTP exchange within a deadline. The seam that tests put a fake behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import urllib3
from urllib3.exceptions import HTTPError, LocationParseError, NewConnectionError, TimeoutError
from urllib3.util import Url, parse_url

from tlp_client.errors import BadAnswer, DeadlineExceeded, Unreachable
from tlp_client.fork import call_in_child

#: An answer holds one score a candidate; more than this is not one of ours.
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
        """Return the answer, or raise `Unreachable` or `DeadlineExceeded` after at most `timeout_s` seconds."""


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

    def post(self, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> HttpAnswer:
        """Send a request and read the whole answer, see `Transport.post`."""
        # A socket's timeout bounds each read of it, but neither the look-up of the host nor a server that sends
        # its headers in drops. Only giving up on the thread that waits bounds them all.
        exchange = _Exchange(self._clock() + timeout_s)
        thread = threading.Thread(
            target=exchange.run,
            args=(lambda: self._post(path, body, headers, timeout_s, exchange),),
            name="tlp-exchange",
            daemon=True,
        )
        thread.start()
        thread.join(timeout_s)
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
                    # The real answer follows on this connection; the next request must not take it for its own.
                    raise BadAnswer(f"{self._url}: status {response.status}, which is no whole answer")
                received = self._read(response, exchange)
            except BaseException:
                response.close()  # the rest of the answer must not meet the next request
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


class _Exchange:
    """What a thread that exchanges a request for an answer came to."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._answer: HttpAnswer | None = None
        self._error: BaseException | None = None

    def run(self, post: Callable[[], HttpAnswer]) -> None:
        """Keep what `post` returns or raises."""
        try:
            self._answer = post()
        except BaseException as error:  # noqa: BLE001  it is raised again where the answer is asked for
            self._error = error

    def result(self, late: str) -> HttpAnswer:
        """Return the answer or raise the error; `DeadlineExceeded` where there is neither yet."""
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error  # else it would keep itself, and the socket of its traceback, until the next garbage collection
        if self._answer is None:
            raise DeadlineExceeded(late)
        return self._answer
