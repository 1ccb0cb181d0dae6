"""Reads the head of a request: the type of its body, the client's name, and the query parameters."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from tlp_client.errors import UnknownField
from tlp_client.wire.fields import CLIENT_HEADER, read_name
from tlp_service.api.answers import MalformedBody
from tlp_service.errors import InvalidBody

JSON = "application/json"
NDJSON = "application/x-ndjson"


def content_type(request: Request, accepted: Sequence[str]) -> str:
    """Return the media type of the body.

    Raises
    ------
    MalformedBody
        If the route does not read that type.
    """
    stated = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if stated not in accepted:
        raise MalformedBody(
            f"Content-Type: this route reads {' or '.join(accepted)}, not {stated[:60]!r}",
            code="content_type",
        )
    return stated


def read_client(request: Request) -> str:
    """Return the client's name for fair queueing: the stated one, or else its address.

    Raises
    ------
    InvalidRequest
        If the stated name is not valid.
    """
    stated = read_name(request.headers.get(CLIENT_HEADER), f"header {CLIENT_HEADER}")
    return stated or (request.client.host if request.client else "")


def read_query(request: Request, allowed: Sequence[str]) -> dict[str, str | None]:
    """Return the query parameters, all of which are names; None for each one that is not given.

    Raises
    ------
    UnknownField
        If there is a parameter that this type of body does not take.
    InvalidBody
        If a parameter is given twice.
    InvalidRequest
        If a value is not a name.
    """
    found: dict[str, str | None] = {}
    for name, value in request.query_params.multi_items():
        if name not in allowed:
            takes = ", ".join(allowed) if allowed else "none, for a JSON body says it all"
            raise UnknownField(f"query parameter {name[:40]!r}: this type of body takes {takes}")
        if name in found:
            raise InvalidBody(f"query parameter {name!r} is given twice")
        found[name] = read_name(value, f"query parameter {name}")
    return dict.fromkeys(allowed) | found
