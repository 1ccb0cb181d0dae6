"""Check single fields of requests and answers."""

from __future__ import annotations

import json
import re
from typing import Any, TypeGuard

from tlp_client.errors import (
    BadAnswer,
    InvalidRequest,
    UnknownField,
    UnknownFormat,
    Unsupported,
    is_text,
    shown,
)

FORMAT = 1

#: Request header: seconds until the client gives up. The server then drops the request.
DEADLINE_HEADER = "tlp-deadline-s"

#: Request header: name of the client, for fair queueing.
CLIENT_HEADER = "tlp-client"

#: Request header: number of candidates in the body, so that a full server can refuse it without decoding it.
CANDIDATES_HEADER = "tlp-candidates"

#: Request header: number of candidates the client served from its cache since its last request, for the
#: metrics.
CACHED_HEADER = "tlp-cached"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,127}")


def is_name(value: object) -> TypeGuard[str]:
    """Return whether a value is a name, see `read_name`."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def read_name(value: object, where: str) -> str | None:
    """Return a name (platform, version, worker, id) or None.

    Raises
    ------
    InvalidRequest
        If it is not a string of 1 to 128 letters, digits and ``._:+-`` that begins with a letter or digit.
    """
    if value is None:
        return None
    if not is_name(value):
        raise InvalidRequest(f"{where}: 1 to 128 letters, digits and ._:+- are a name, not {shown(value)}")
    return value


def read_head(document: object, allowed: tuple[str, ...]) -> dict[str, Any]:
    """Return the body of a request of this wire format.

    Raises
    ------
    UnknownFormat
        If it has another format. This is checked first, since another format has other fields.
    """
    stated = document.get("format") if isinstance(document, dict) else None
    if type(stated) is int and stated != FORMAT:
        raise UnknownFormat(
            f"format: this is wire format {FORMAT}, not {shown(stated)}; update the older of client and server"
        )
    fields = read_object(document, "the body", allowed)
    if type(stated) is not int:
        raise InvalidRequest(f"format: this is wire format {FORMAT}, not {shown(stated)}")
    return fields


def read_on_invalid(fields: dict[str, Any]) -> bool:
    """Return whether invalid parts are reported individually; by default one refuses the whole request.

    Raises
    ------
    Unsupported
        If the value is a string that this server does not know.
    """
    choice = fields.get("on_invalid", "reject")
    if choice not in ("reject", "report"):
        kind = Unsupported if isinstance(choice, str) else InvalidRequest
        raise kind(f"on_invalid: 'reject' or 'report', not {shown(choice)}")
    return bool(choice == "report")


def read_object(value: object, where: str, allowed: tuple[str, ...]) -> dict[str, Any]:
    """Return a JSON object that has only allowed fields.

    Raises
    ------
    UnknownField
        If it has other fields; the message names the first of them and the known fields.
    """
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where}: a JSON object is needed, not {shown(value)}")
    unknown = [key for key in value if key not in allowed]
    if unknown:
        raise UnknownField(f"{where}: unknown field {shown(unknown[0])}; known: {', '.join(allowed)}")
    return value


def read_text(value: object, where: str, max_length: int) -> str:
    """Return a string after checking that it is not blank and has at most `max_length` characters."""
    if not isinstance(value, str) or not is_text(value) or not value.strip() or len(value) > max_length:
        raise InvalidRequest(
            f"{where}: a string of 1 to {max_length} characters is needed, not {shown(value)}"
        )
    return value


def decode_answer(body: bytes) -> dict[str, Any]:
    """Return the decoded answer of the service; raise `BadAnswer` if it does not have this format."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"the answer is not JSON: {error}") from None
    if not isinstance(answer, dict) or answer.get("format") != FORMAT:
        raise BadAnswer(
            f"the answer is not of wire format {FORMAT}; check the URL, or update the older of service and client"
        )
    return answer


def read_errors(errors: object, key: str) -> dict[int, str]:
    """Return a dict from position to error, from the list of errors in an answer."""
    if not isinstance(errors, list):
        return {}
    return {e[key]: str(e.get("error")) for e in errors if isinstance(e, dict) and type(e.get(key)) is int}
