"""How much memory a JSON body takes when it is decoded, estimated before that happens, and bounded.

Bytes of a body say little: ``[[[[1]]]]`` becomes 38 times as large, and one call of the decoder holds the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from traceback import clear_frames

from tlp_service.errors import BodyTooLarge

#: Bytes of CPython objects, as measured with 3.11: of a list with its first elements, of an object with its first keys,
#: of the place of one more element with a number there, and of half a text, which has two quotes.
_LIST, _OBJECT, _ELEMENT, _QUOTE = 96, 192, 36, 34
#: Bytes of a character of a text that is not ASCII, and of one that is.
_CHARACTER, _ASCII_CHARACTER = 4, 1


def decoded_bytes(body: bytes) -> int:
    """Return about how many bytes the objects take that a JSON body decodes to, at most."""
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
    """Have an exception that leaves the block keep nothing of what the functions in it had read.

    It waits for the event loop to answer it, and would keep it alive until then.
    """
    try:
        yield
    except Exception as error:
        clear_frames(error.__traceback__)
        raise


#: Bytes of a body that is decoded without waiting: an ordinary request waits for no large one.
_SMALL_BODY = 1 << 20


class DecodeMemory:
    """Bounds what is decoded of large bodies at a time, in all threads. A thread that wants more waits until others are done.

    A thread may hold it while it computes and for nothing else, or others would wait for ever.

    Parameters
    ----------
    max_bytes : int
        Bytes of decoded objects at a time, and so of one body.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._held = 0
        self._changed = Condition()

    @contextmanager
    def hold(self, body: bytes) -> Iterator[None]:
        """Wait until there is room for what a JSON body decodes to, and hold it.

        Raises
        ------
        BodyTooLarge
            If there never is.
        """
        nbytes = decoded_bytes(body)
        self.check(nbytes)
        with self._wait(nbytes if len(body) > _SMALL_BODY else 0):
            yield

    @contextmanager
    def hold_at_most(self, body: bytes) -> Iterator[None]:
        """Wait for all room at most, for a body that is not decoded as a whole; `check` what its parts take."""
        with self._wait(min(self.max_bytes, decoded_bytes(body)) if len(body) > _SMALL_BODY else 0):
            yield

    def check(self, nbytes: int) -> None:
        """Raise `BodyTooLarge` where a body becomes more than may be decoded at a time."""
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
