"""What is wrong with the measurement stream, in words that name neither its address nor what it holds."""

from __future__ import annotations

import asyncio
import re

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
)

_REFUSES = "it refuses the user, the password or a command"
#: Class of an error -> what it means; the first that fits, so a class stands before those that it is derived from.
_CAUSES: dict[type[BaseException] | tuple[type[BaseException], ...], str] = {
    OutOfMemoryError: "it is full: it has reached its maxmemory",
    ReadOnlyError: "it is a read-only replica",
    (
        AuthenticationError,
        AuthorizationError,
        NoPermissionError,
    ): "it refuses the user, the password or a command",
    AskError: "it is a node of a cluster that does not hold the stream",  # and MovedError, which is one
    BusyLoadingError: "it is still loading its data",
    (TimeoutError, asyncio.TimeoutError): "it does not answer",
}
#: Beginning of an error of Redis that has a code, such as MISCONF or NOREPLICAS.
_CODE = re.compile(r"[A-Z]{4,20}(?= )")


def cause_of(error: BaseException) -> str:
    """Return what is wrong, for whoever asks; the error itself may name inner addresses and is for the log."""
    for kinds, cause in _CAUSES.items():
        if isinstance(error, kinds):
            return cause
    if isinstance(error, ResponseError):
        code = _CODE.match(str(error))
        return f"it answers {code.group()}" if code else _REFUSES
    return "it cannot be reached"
