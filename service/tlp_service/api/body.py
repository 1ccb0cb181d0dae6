"""Reading of request bodies: bounds, decompression and decoding."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import time
import zlib
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request

from tlp_client.errors import Unsupported
from tlp_service.api.answers import BodyTooLarge, ClientGone, MalformedBody
from tlp_service.api.request_memory import Reservation
from tlp_service.errors import DeadlinePassed, QueueFull

T = TypeVar("T")

#: Maximum bytes that are read of a body over the limit. A client that sends its whole body before it reads
#: thus gets the 413 instead of a reset connection.
_DRAINED_BYTES = 512 << 20

#: Maximum bytes of an invalid body that is parsed a second time for a better error message.
_READ_TWICE_BYTES = 1 << 20

#: Maximum seconds between two chunks of a body, and maximum seconds by which it may lag behind the minimum
#: rate.
_PATIENCE_S = 30
_MIN_BYTES_PER_S = 1 << 20

#: Maximum number of members of a gzip stream. Block writers, such as bgzip, write one per 64 KiB. An empty
#: member takes as long as 40 kB of data.
_MAX_GZIP_MEMBERS = 1024


async def read_body(
    request: Request, limit: int, memory: Reservation, deadline_s: float | None = None
) -> bytes:
    """Return the whole body, decompressed.

    Raises
    ------
    DeadlinePassed
        If the body is not complete after `deadline_s` seconds.
    BodyTooLarge
        If the body is larger than `limit` bytes, as sent or decompressed.
    QueueFull
        If the bodies of other requests leave no memory for it.
    MalformedBody
        If the encoding is unknown, the gzip stream is damaged, or the body was cut.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise MalformedBody(
            f"Content-Encoding: gzip or identity, not {encoding[:60]!r}", code=Unsupported.code
        )
    body = _Body(limit, memory, _Inflater() if encoding == "gzip" else None)
    started = time.monotonic()
    try:
        stream = request.stream()
        while not body.is_over:
            elapsed = time.monotonic() - started
            left = math.inf if deadline_s is None else deadline_s - elapsed
            patience = min(_PATIENCE_S, _PATIENCE_S + body.received / _MIN_BYTES_PER_S - elapsed)
            with anyio.fail_after(max(0.0, min(left, patience))):
                chunk = await anext(stream, None)
            if chunk is None:
                break
            body.add(chunk)
    except TimeoutError:
        if left <= patience:  # do not compare with the clock: the timer of the loop may fire a little early
            raise DeadlinePassed("the deadline passed before the body was whole") from None
        raise MalformedBody(f"body: it came too slowly, or nothing of it for {_PATIENCE_S} s") from None
    except ClientDisconnect:
        raise MalformedBody("the connection closed before the body was whole") from None
    return body.whole()


class _Body:
    """The received part of a body.

    The rest of a refused body is read up to a limit, so that the client reads the answer.

    Parameters
    ----------
    limit : int
        Maximum bytes, as sent and as decompressed.
    memory : Reservation
        Memory reservation of the request, which grows with the body.
    inflate : _Inflater or None
        Decompressor; None if the body is not compressed.
    """

    def __init__(self, limit: int, memory: Reservation, inflate: _Inflater | None) -> None:
        self.received = 0
        self._limit = limit
        self._memory = memory
        self._inflate = inflate
        self._parts: list[bytes] = []
        self._size = 0
        self._is_too_large = self._has_no_room = False

    @property
    def is_over(self) -> bool:
        """Whether enough of a refused body was read."""
        return self.received > _DRAINED_BYTES and (self._is_too_large or self._has_no_room)

    def add(self, chunk: bytes) -> None:
        """Add a chunk; the first chunk over a limit drops the whole body."""
        self.received += len(chunk)
        if self._is_too_large or self._has_no_room:
            return
        part = chunk if self._inflate is None else self._inflate.feed(chunk, self._limit + 1 - self._size)
        self._size += len(part)
        self._parts.append(part)
        self._is_too_large = self._size > self._limit or self.received > self._limit
        self._has_no_room = not self._memory.grow(len(part))
        if self._is_too_large or self._has_no_room:
            self._parts.clear()
            self._memory.release()

    def whole(self) -> bytes:
        """Return the complete body, or raise the error with which it is refused."""
        if self._is_too_large:
            raise BodyTooLarge(f"body: larger than the {self._limit} bytes that one request may hold")
        if self._has_no_room:
            raise QueueFull("the bodies of other requests leave no memory for this one", retry_after=1)
        if self._inflate is not None and not self._inflate.is_whole:
            raise MalformedBody("body: the gzip stream is cut")
        return b"".join(self._parts)


async def unless_gone(request: Request, answer: Coroutine[Any, Any, T]) -> T:
    """Return the answer to a request, unless the client disconnects first. Its body must have been read.

    Raises
    ------
    ClientGone
        If the client disconnects; `answer` is then cancelled.
    """
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(request.receive())  # after the body, only the disconnect can follow
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        raise ClientGone("the client closed the connection")
    finally:
        answering.cancel()
        leaving.cancel()
        # Retrieve their exceptions, because asyncio logs those that are never retrieved.
        await asyncio.gather(answering, leaving, return_exceptions=True)
        # An exception refers to this frame, and these variables refer to the exception: break the cycle.
        del answering, leaving, answer


class _Inflater:
    """Decompresses a gzip stream in chunks. Like gunzip, it reads all members of the stream."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._members = 1

    @property
    def is_whole(self) -> bool:
        """Whether the last member has ended."""
        return self._member.eof

    def feed(self, chunk: bytes, room: int) -> bytes:
        """Return the decompressed chunk, about `room` bytes at most."""
        parts: list[bytes] = []
        try:
            while chunk and room > 0:
                if self._member.eof:
                    self._members += 1
                    if self._members > _MAX_GZIP_MEMBERS:
                        raise MalformedBody(
                            f"body: expected at most {_MAX_GZIP_MEMBERS} members of gzip, got more; "
                            "compress it as a whole"
                        )
                    self._member = zlib.decompressobj(wbits=31)
                parts.append(self._member.decompress(chunk, room))
                room -= len(parts[-1])
                chunk = self._member.unused_data
        except zlib.error as error:
            raise MalformedBody(f"body: not gzip: {error}") from None
        return b"".join(parts)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection: decoding creates no garbage, and a collection would take longer."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def decode_json(body: bytes) -> Any:
    """Return the decoded JSON body.

    ``NaN``, ``Infinity`` and ``1e400`` are not JSON, but many writers produce them. They are decoded to
    floats, so that the error of the field's reader can name their place. Bodies above 1 MiB are excepted,
    because that would take seconds.

    Raises
    ------
    MalformedBody
        If the body is not JSON; names the place.
    """
    try:
        with _no_collection():
            return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as strict:
        if len(body) > _READ_TWICE_BYTES:
            raise MalformedBody(f"body: not JSON: {strict}") from None
        # The slower parser of the standard library knows NaN, and gives a line and column.
        try:
            with _no_collection():
                return json.loads(body.decode())  # not of bytes, which may be UTF-16 to json
        except UnicodeDecodeError as error:
            raise MalformedBody(f"body: not UTF-8 at byte {error.start}") from None
        except json.JSONDecodeError as error:
            raise MalformedBody(f"body: not JSON: {error}") from None
        except (ValueError, RecursionError):
            raise MalformedBody(f"body: not JSON: {strict}") from None
    except RecursionError:
        raise MalformedBody("body: not JSON that can be read: nested too deeply") from None


def check_count(document: Any, field: str, limit: int) -> None:
    """Raise `BodyTooLarge` if a list of the body has more than `limit` elements."""
    elements = document.get(field) if isinstance(document, dict) else None
    if isinstance(elements, list) and len(elements) > limit:
        raise BodyTooLarge(f"{field}: {len(elements)} are more than the {limit} that one request may hold")
