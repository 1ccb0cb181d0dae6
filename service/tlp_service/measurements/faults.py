"""Describes faults of the measurement stream without naming addresses or contents."""

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

#: Description of an authentication or permission error.
_REFUSES = "it refuses the user, the password or a command"
#: Class of an error -> its description. The first match counts, so each class comes before its base classes.
_CAUSES: dict[type[BaseException] | tuple[type[BaseException], ...], str] = {
    OutOfMemoryError: "it is full: it has reached its maxmemory",
    ReadOnlyError: "it is a read-only replica",
    (AuthenticationError, AuthorizationError, NoPermissionError): _REFUSES,
    AskError: "it is a node of a cluster that does not hold the stream",  # and MovedError, which is one
    BusyLoadingError: "it is still loading its data",
    (TimeoutError, asyncio.TimeoutError): "it does not answer",
}
#: The code at the beginning of a Redis error, such as MISCONF or NOREPLICAS.
_CODE = re.compile(r"[A-Z]{4,20}(?= )")


def cause_of(error: BaseException) -> str:
    """Return a description of an error for clients.

    The error's own text is only logged, since it may contain internal addresses.
    """
    for kinds, cause in _CAUSES.items():
        if isinstance(error, kinds):
            return cause
    if isinstance(error, ResponseError):
        code = _CODE.match(str(error))
        return f"it answers {code.group()}" if code else _REFUSES
    return "it cannot be reached"
