"""The exceptions of ``tlp_client``.

::

    TLPError
    ├── InvalidInput            a document, record or primitive breaks a rule; the message names rule and
    place │   ├── InvalidPrimitive
    │   ├── InvalidRecord
    │   └── InvalidRequest      with a code for programs
    │       ├── UnknownFormat   another version of the wire format: not for this server
    │       ├── UnknownField    a field that this server does not know
    │       └── Unsupported     a value that this server does not know
    └── ServiceError            the service gave no usable answer
        ├── Unreachable         no connection, a closed socket, a half-sent body
        ├── DeadlineExceeded    no whole answer within the deadline
        ├── BadAnswer           a 200 whose body is not what was asked for
        └── Refused             an HTTP status other than 200; carries status, code and Retry-After
"""

from __future__ import annotations

import reprlib
from typing import ClassVar, TypeGuard


class TLPError(Exception):
    """Base of everything this package raises on purpose."""


class InvalidInput(TLPError, ValueError):
    """An input breaks a rule; the message names the rule and the place."""


class InvalidPrimitive(InvalidInput):
    """A schedule primitive of an unknown kind, or with arguments that are invalid for its kind."""


class InvalidRecord(InvalidInput):
    """A tuning record that is not of its dialect, or not of a known version."""


class InvalidRequest(InvalidInput):
    """A predict or measurement request that is well-formed JSON but breaks the wire format."""

    #: Code for programs, which is also in the answer.
    code: ClassVar[str] = "invalid"


class UnknownFormat(InvalidRequest):
    """A request of another version of the wire format. A server of that version may accept it."""

    code = "unknown_format"


class UnknownField(InvalidRequest):
    """A request with a field that this server does not know. A later release may accept it."""

    code = "unknown_field"


class Unsupported(InvalidRequest):
    """A request with an unknown value in a known field. A later release may accept it."""

    code = "unsupported"


class ServiceError(TLPError):
    """The service gave no usable answer."""


class Unreachable(ServiceError):
    """The connection could not be made, or broke before the answer was complete."""


class DeadlineExceeded(ServiceError):
    """The complete answer did not arrive within the deadline."""


class BadAnswer(ServiceError):
    """The service answered with status 200, but the body does not fit the request."""


class Refused(ServiceError):
    """The service answered with a status other than 200.

    Parameters
    ----------
    status : int
        The HTTP status.
    message : str
        The ``error`` of the answer.
    code : str
        The ``code`` of the answer, such as ``unknown_platform``; empty if it gave none.
    retry_after : float or None
        Seconds, from the ``Retry-After`` header.
    """

    def __init__(self, status: int, message: str, code: str = "", retry_after: float | None = None) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.code = code
        self.retry_after = retry_after

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status in (429, 500, 502, 503, 504)

    @property
    def remedy(self) -> str:
        """Advice for the user. It depends on the status, because later servers may have unknown codes."""
        if self.is_transient:
            return "the service may answer later; see its log"
        if self.status in (401, 403, 407):
            return "check the credentials for the service or the proxy before it"
        if self.status in (404, 405) and self.code in ("", "http"):
            return "check the URL of the service"
        if self.status == 413:
            return "raise the limit of the service (TLP_MAX_BODY_MIB) or of the proxy before it"
        if self.status in (400, 415, 422):
            return "the releases of service and client may differ: update the older one"
        return "see the log of the service"


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 60


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is a string that UTF-8 can encode; JSON escapes allow other strings."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: object) -> str:
    """Return a short form of a value for an error message, however large the value is."""
    try:
        return _repr.repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a very large integer"
