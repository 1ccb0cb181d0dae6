"""Request bodies: bounded, decompressed, decoded; each fault with its status."""

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

#: A body over the limit is read on to its end up to here, so that a client that sends before it listens
#: gets its 413 instead of a reset connection.
_DRAINED_BYTES = 512 << 20

#: The largest body that is parsed once more to find what is wrong with it.
_READ_TWICE_BYTES = 1 << 20

#: Seconds in which some more of a body has to come, and by which it may fall behind the least rate.
_PATIENCE_S = 30
_MIN_BYTES_PER_S = 1 << 20

#: Members of a gzip stream. Writers of blocks, such as bgzip, make one per 64 KiB. An empty member takes as long as 40 kB of data.
_MAX_GZIP_MEMBERS = 1024


async def read_body(
    request: Request, limit: int, memory: Reservation, deadline_s: float | None = None
) -> bytes:
    """Return the whole body, decompressed.

    Raises
    ------
    DeadlinePassed
        If it is not there after `deadline_s` seconds.
    BodyTooLarge
        If it is larger than `limit` bytes as sent or as decompressed.
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
        if left <= patience:  # not by the clock, for the loop's timer may be a little early
            raise DeadlinePassed("the deadline passed before the body was whole") from None
        raise MalformedBody(f"body: it came too slowly, or nothing of it for {_PATIENCE_S} s") from None
    except ClientDisconnect:
        raise MalformedBody("the connection closed before the body was whole") from None
    return body.whole()


class _Body:
    """What has come of a body. The rest of one that is refused is read for a while, so that the client reads the answer.

    Parameters
    ----------
    limit : int
        Maximum bytes, as sent and as decompressed.
    memory : Reservation
        Grows with the body.
    inflate : _Inflater or None
        Decompresses it.
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
        """Take what came; the first chunk over a limit drops all of the body."""
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
        """Return the body, or raise the reason for which it is refused."""
        if self._is_too_large:
            raise BodyTooLarge(f"body: larger than the {self._limit} bytes that one request may hold")
        if self._has_no_room:
            raise QueueFull("the bodies of other requests leave no memory for this one", retry_after=1)
        if self._inflate is not None and not self._inflate.is_whole:
            raise MalformedBody("body: the gzip stream is cut")
        return b"".join(self._parts)


async def unless_gone(request: Request, answer: Coroutine[Any, Any, T]) -> T:
    """Return the answer to a request whose body was read, unless the client goes away meanwhile.

    Raises
    ------
    ClientGone
        If it does; `answer` is cancelled.
    """
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(request.receive())  # after the body nothing else comes
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        raise ClientGone("the client closed the connection")
    finally:
        answering.cancel()
        leaving.cancel()
        # What they end with is nobody's any more, but somebody has to have looked at it.
        await asyncio.gather(answering, leaving, return_exceptions=True)
        # An exception refers to this frame, and these variables refer to the exception: break the cycle.
        del answering, leaving, answer


class _Inflater:
    """Decompresses a gzip stream that comes in chunks; like gunzip it reads members one after the other."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._members = 1

    @property
    def is_whole(self) -> bool:
        """Whether the last member has ended."""
        return self._member.eof

    def feed(self, chunk: bytes, room: int) -> bytes:
        """Return what a chunk holds, at most some `room` bytes."""
        parts: list[bytes] = []
        try:
            while chunk and room > 0:
                if self._member.eof:
                    self._members += 1
                    if self._members > _MAX_GZIP_MEMBERS:
                        raise MalformedBody(
                            f"body: expected a gzip stream of at most {_MAX_GZIP_MEMBERS} members, got more; compress it as a whole"
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
    """Switch garbage collection off: a decoder makes no garbage, and a collection takes longer than decoding."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def decode_json(body: bytes) -> Any:
    """Return what a JSON body holds.

    ``NaN``, ``Infinity`` and ``1e400``, which are no JSON but which many writers produce, decode to floats, so that
    the reader of the field can say where they stand; not in bodies above 1 MiB, which would take seconds.

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
    """Raise `BodyTooLarge` where a list of the body holds more than `limit` elements."""
    elements = document.get(field) if isinstance(document, dict) else None
    if isinstance(elements, list) and len(elements) > limit:
        raise BodyTooLarge(f"{field}: {len(elements)} are more than the {limit} that one request may hold")
