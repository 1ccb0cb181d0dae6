"""Estimates the memory of a decoded JSON body before it is decoded, and bounds it.

The size of a body says little: ``[[[[1]]]]`` takes 38 times as many bytes once decoded. A call of the decoder
holds the GIL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from traceback import clear_frames

from tlp_service.api.answers import BodyTooLarge

#: Bytes of objects in CPython 3.11, measured: a list with its first elements, a dict with its first keys, one
#: more element that is a number, and half a string (each string has two quotes).
_LIST, _OBJECT, _ELEMENT, _QUOTE = 96, 192, 36, 34
#: Bytes per character of a string that is not ASCII, and of one that is.
_CHARACTER, _ASCII_CHARACTER = 4, 1


def decoded_bytes(body: bytes) -> int:
    """Return an upper estimate of the bytes of the objects that a JSON body decodes to."""
    is_ascii = body.isascii() and b"\\" not in body
    return (
        _LIST * body.count(b"[")
        + _OBJECT * body.count(b"{")
        + _ELEMENT * body.count(b",")
        + _QUOTE * body.count(b'"')
        + (_ASCII_CHARACTER if is_ascii else _CHARACTER) * len(body)
    )


@contextmanager
def let_go() -> Iterator[None]:
    """Clear the frames of an exception that leaves the block, so that it keeps no decoded objects alive.

    The exception lives until the event loop has answered it.
    """
    try:
        yield
    except Exception as error:
        clear_frames(error.__traceback__)
        raise


#: Bytes up to which a body is decoded without waiting, so that ordinary requests never wait for large ones.
_SMALL_BODY = 1 << 20


class DecodeMemory:
    """Bounds the memory of large bodies that are decoded at the same time, over all threads.

    A thread that needs more waits until others have released enough. While it holds memory, a thread must
    only compute: if it waited for another thread, both could wait for ever.

    Parameters
    ----------
    max_bytes : int
        Bytes of all decoded objects at a time, and thus also of one body.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._held = 0
        self._changed = Condition()

    @contextmanager
    def hold(self, body: bytes) -> Iterator[None]:
        """Wait until there is room for the decoded body, and hold that room.

        Raises
        ------
        BodyTooLarge
            If the decoded body is larger than `max_bytes`.
        """
        nbytes = decoded_bytes(body)
        self.check(nbytes)
        with self._wait(nbytes if len(body) > _SMALL_BODY else 0):
            yield

    @contextmanager
    def hold_at_most(self, body: bytes) -> Iterator[None]:
        """Hold at most `max_bytes`, for a body that is decoded in parts; `check` their sum while decoding."""
        with self._wait(min(self.max_bytes, decoded_bytes(body)) if len(body) > _SMALL_BODY else 0):
            yield

    def check(self, nbytes: int) -> None:
        """Raise `BodyTooLarge` if the decoded size of a body exceeds `max_bytes`."""
        if nbytes > self.max_bytes:
            raise BodyTooLarge(
                f"body: expected at most {self.max_bytes >> 20} MiB when decoded (TLP_MAX_DECODED_MIB), "
                f"got about {-(-nbytes >> 20)} MiB; send it in parts"
            )

    @contextmanager
    def _wait(self, nbytes: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._held + nbytes <= self.max_bytes)
            self._held += nbytes
        try:
            with let_go():
                yield
        finally:
            with self._changed:
                self._held -= nbytes
                self._changed.notify_all()
