"""uvicorn's HTTP protocol with two bounds: one request per connection at a time, and a time limit on every wait.

uvicorn starts each request that its parser finds, and resumes reading after each answer. A client that
pipelines requests and does not read the answers could fill the memory. This class feeds the parser one
request at a time. It pauses the socket and holds the bytes of the next request back until the answer is
written.
"""

from __future__ import annotations

import json
from enum import Enum, auto

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tlp_service.api.connections import ConnectionLimits, Connections

#: Bytes of one request before its body, or after it. Headers stay in memory until they are complete.
_MAX_HEAD_BYTES = 64 << 10
#: Minimum size of the slices in which the parser gets a body of unknown length. A slice ends where the body
#: may end, so it can contain the end of the body and a few small requests after it.
_CHUNKED_SLICE = 512
#: Maximum size of such a slice: about a thousand chunks of one byte each.
_MAX_CHUNKED_SLICE = 8 << 10
#: Chunks of a connection that are handled in one turn of the event loop; each takes about 2 µs.
_CHUNKS_PER_TURN = 1000
_END_OF_HEAD = b"\r\n\r\n"


class _Phase(Enum):
    """States of a connection, by what it is waiting for."""

    SILENT = auto()  # the first byte
    HEAD = auto()  # the rest of a head
    BODY = auto()  # the rest of a body, which `read_body` bounds
    ANSWER = auto()  # the application
    DRAIN = auto()  # the rest of a body whose request was answered
    KEPT_ALIVE = auto()  # the next request


class _Flow(FlowControl):
    """uvicorn's flow control, which does not resume reading while pipelined bytes are held back."""

    is_holding = False

    def resume_reading(self) -> None:
        if not self.is_holding:
            super().resume_reading()


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    Its own errors (400, 408, 431, 503) have the same form as all others: ``{"error": …, "code": …}``.
    """

    #: Shared by all connections of a server, see `protocol_of`.
    shared = Connections(ConnectionLimits())

    _flow: _Flow
    _head_bytes = 0  # of the current head, or of the trailers of a body
    _body_left: int | None = 0  # bytes of the body that have not arrived; None if its length is unknown
    _is_between = True  # whether no request is partly received
    _held = b""  # received bytes that follow an unanswered request, or that are for the next turn of the event loop
    _chunks = 0  # parts of bodies that arrived in this turn
    _phase = _Phase.SILENT
    _unsent = 0  # bytes of unsent answers when last checked
    _unsent_since: float | None = None  # since when answers wait for the client to read
    _max_unsent = 0  # maximum of `_unsent` since then

    #: When the current phase began.
    since = 0.0
    #: When the client last read part of an answer, or when its pipelined requests began to wait.
    stalled_since = 0.0
    has_had_request = False

    def connection_made(self, transport: object) -> None:
        """Accept the connection, unless too many are open."""
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn's own override of asyncio's type
        self.flow = self._flow = _Flow(self.transport)
        self._wait_for(_Phase.SILENT)
        if not self.shared.admit(self, self.connections):  # type: ignore[arg-type]  # all are of this class
            self._refuse(503, "Service Unavailable", "too many open connections; try again", "not_ready")

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that the connection holds."""
        self._held = b""
        self.shared.release(self)
        # Nobody waits for the answers of pipelined requests any more: end them like the current one.
        for cycle, _ in self.pipeline:
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    # Receiving

    def data_received(self, data: bytes) -> None:
        """Feed the parser up to the end of a request, and hold back the bytes after it."""
        if self.transport.is_closing():
            return
        if self._held:
            self._hold(self._held + data)
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        at = self._chunks = 0
        view = memoryview(data)
        while at < len(data) and not self.transport.is_closing():
            if self._must_wait:
                self._hold(data[at:])
                return
            if self._chunks >= _CHUNKS_PER_TURN:
                # A client that sends a byte in each chunk would keep the event loop for longer than all
                # others together.
                self._hold(data[at:])
                self.loop.call_soon(self._go_on)
                return
            if self._phase in (_Phase.SILENT, _Phase.KEPT_ALIVE):
                self._wait_for(_Phase.HEAD)
            end = self._end_of_slice(data, at)
            self._head_bytes += end - at
            super().data_received(view[at:end])  # type: ignore[arg-type]  # the parser takes any buffer
            at = end
            # The callbacks of the parser reset the count when they reach a body or the end of a request.
            if self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
                message = f"headers: expected at most {_MAX_HEAD_BYTES} bytes"
                self._refuse(431, "Request Header Fields Too Large", message)

    @property
    def _must_wait(self) -> bool:
        """Whether the next bytes begin a new request while earlier answers are not fully sent."""
        if not self._is_between or self.cycle is None:
            return False
        return not self.cycle.response_complete or bool(self.pipeline) or self.flow.write_paused

    def _end_of_slice(self, data: bytes, at: int) -> int:
        """Return up to which position to feed the parser, so that it reaches the end of one request only."""
        if not self._is_between and self._phase in (_Phase.BODY, _Phase.DRAIN):
            if self._body_left is not None:
                return min(len(data), at + self._body_left)
            found = data.find(_END_OF_HEAD, at + _CHUNKED_SLICE - len(_END_OF_HEAD), at + _MAX_CHUNKED_SLICE)
            end = at + _MAX_CHUNKED_SLICE if found < 0 else found + len(_END_OF_HEAD)
            return min(len(data), end)
        found = data.find(_END_OF_HEAD, at)
        return len(data) if found < 0 else found + len(_END_OF_HEAD)

    def _hold(self, data: bytes) -> None:
        if not self._held:
            self.stalled_since = self.shared.clock()
        self._held = data
        self._flow.pause_reading()
        self._flow.is_holding = True
        self.shared.hold(self)

    def _go_on(self) -> None:
        """Feed the bytes that were held back, if they no longer have to wait."""
        if not self._held or self._must_wait or self.transport.is_closing():
            return
        held, self._held = self._held, b""
        self._flow.is_holding = False
        if not self._flow.write_paused:
            self.shared.release(self)
        self._feed(held)
        if not self._held and len(self.cycle.body) <= HIGH_WATER_LIMIT:
            self._flow.resume_reading()

    def on_message_begin(self) -> None:
        """Note that a request has begun."""
        self._is_between = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Reset the count of head bytes, and note how long the body is."""
        self._head_bytes = 0
        self.has_had_request = True
        lengths = [value for name, value in self.headers if name == b"content-length"]
        is_chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        self._body_left = None if is_chunked else int(lengths[0]) if lengths else 0
        self._wait_for(_Phase.BODY)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Reset the count of head bytes, since more of the body or trailers may follow."""
        self._head_bytes = 0
        self._chunks += 1
        if self._body_left is not None:
            self._body_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Reset the count of head bytes for the next request, and note that this one is complete."""
        self._head_bytes = 0
        self._is_between = True
        self._wait_for(_Phase.KEPT_ALIVE if self.cycle.response_complete else _Phase.ANSWER)
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore an offered upgrade and go on with HTTP/1.1; many clients offer HTTP/2.

        The parser takes the body of such a request for bytes of the other protocol. So the body is not read,
        and the connection ends after the answer.
        """
        if self._body_left != 0:
            self.cycle.keep_alive = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    # Sending

    def on_response_complete(self) -> None:
        """Begin to wait for the next request, or for the rest of the current one."""
        had_others = bool(self.pipeline)
        super().on_response_complete()
        if not had_others:
            self._wait_for(_Phase.KEPT_ALIVE if self._is_between else _Phase.DRAIN)
        if self.transport.get_write_buffer_size():
            self.note_progress(self.shared.clock())
        self._go_on()

    def pause_writing(self) -> None:
        """Start counting the bytes that the client does not read."""
        super().pause_writing()
        self.note_progress(self.shared.clock())
        self.shared.hold(self)

    def resume_writing(self) -> None:
        """Take the next request, now that the client has read the answers."""
        super().resume_writing()
        if not self._held:
            self.shared.release(self)
        self._go_on()

    # Time limits

    def _wait_for(self, phase: _Phase) -> None:
        self._phase = phase
        self.since = self.shared.clock()

    @property
    def is_closing(self) -> bool:
        """Whether the connection is being closed."""
        return self.transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Whether the connection has neither a complete request head nor unsent bytes."""
        return self._phase in (_Phase.SILENT, _Phase.HEAD, _Phase.KEPT_ALIVE) and not self._unsent

    @property
    def held_bytes(self) -> int:
        """Bytes of unsent answers and unread pipelined requests."""
        return len(self._held) + self.transport.get_write_buffer_size()

    def note_progress(self, now: float) -> None:
        """Record the unsent bytes of answers, and whether the client has read any since the last call."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent:
            self._unsent_since = None
            self._max_unsent = 0
        elif self._unsent_since is None:
            self._unsent_since = now
        if unsent != self._unsent:
            self.stalled_since = now
            self._max_unsent = max(self._max_unsent, unsent)
        self._unsent = unsent

    def end_overdue(self, now: float) -> None:
        """Close the connection if its client has exceeded a time limit."""
        limits = self.shared.limits
        self.note_progress(now)
        if self._unsent_since is not None:
            longest = limits.stalled_s + self._max_unsent / limits.min_read_bytes_per_s
            if now - self.stalled_since >= limits.stalled_s or now - self._unsent_since >= longest:
                self.abort()
            return
        if self.is_closing:
            return
        waited = now - self.since
        if self._phase is _Phase.HEAD and waited >= limits.head_s:
            self._refuse(408, "Request Timeout", f"headers: expected all of them within {limits.head_s:g} s")
        elif (
            (self._phase is _Phase.SILENT and waited >= limits.head_s)
            or (self._phase is _Phase.DRAIN and waited >= limits.drain_s)
            or (self._phase is _Phase.KEPT_ALIVE and waited >= self.timeout_keep_alive)
        ):
            self.transport.close()

    def abort(self) -> None:
        """Drop the connection and the bytes that it holds."""
        self._held = b""
        self.shared.release(self)
        self.transport.abort()

    # Errors

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP."""
        self._refuse(400, "Bad Request", msg)

    def _refuse(self, status: int, reason: str, message: str, code: str = "malformed") -> None:
        body = json.dumps({"error": message, "code": code}).encode()
        head = (
            f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def protocol_of(connections: Connections) -> type[HttpProtocol]:
    """Return the protocol class of a server, whose connections share the bounds of `connections`."""
    return type("HttpProtocol", (HttpProtocol,), {"shared": connections})
