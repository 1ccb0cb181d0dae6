"""Error answers: the status of every fault.

Every such answer is ``{"error": "<what and where>", "code": "<for programs>"}``. The readers of the wire
format raise `tlp_client.errors.InvalidRequest`, which is answered as `InvalidBody` with its own code.

``invalid`` and ``malformed`` mean that the request is wrong for every server. ``unknown_format``,
``unknown_field`` and ``unsupported`` mean that this server does not accept the request, and that another
server or release may.
"""

from __future__ import annotations

from tlp_service.errors import (
    DeadlinePassed,
    InvalidBody,
    NotReady,
    QueueFull,
    RequestFault,
    ScoringFailed,
    UnknownName,
    VersionGone,
    VersionRefused,
)


class MalformedBody(RequestFault):
    """The body is not JSON, is incomplete, or is of a type or encoding that the route does not read."""

    code = "malformed"


class NotAuthorized(RequestFault):
    """The admin key is missing or wrong."""

    code = "not_authorized"


class NotAllowed(RequestFault):
    """The server has no admin key, so its registry is not changed over HTTP."""

    code = "not_allowed"


class BodyTooLarge(RequestFault):
    """The request exceeds the maximum number of bytes or candidates."""

    code = "too_large"


class ClientGone(RequestFault):
    """The client closed its connection before the answer; visible only in the metrics."""

    code = "client_gone"


#: Status of each kind of fault.
STATUS: dict[type[RequestFault], int] = {
    MalformedBody: 400,
    NotAuthorized: 401,
    NotAllowed: 403,
    UnknownName: 404,
    VersionGone: 409,
    VersionRefused: 409,
    BodyTooLarge: 413,
    InvalidBody: 422,
    QueueFull: 429,
    ClientGone: 499,
    ScoringFailed: 500,
    NotReady: 503,
    DeadlinePassed: 504,
}


def status_of(kind: type[RequestFault]) -> int:
    """Return the status of a kind of fault; 500 if it has no own status."""
    return next((STATUS[one] for one in kind.__mro__ if one in STATUS), 500)
