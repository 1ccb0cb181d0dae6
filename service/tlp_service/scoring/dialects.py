"""Which dialects the features of networks read."""

from __future__ import annotations

from collections.abc import Collection

from tlp_client.dialects.registry import DEFAULT
from tlp_service.errors import InvalidBody

#: Dialects that all features read.
READABLE: tuple[str, ...] = (DEFAULT,)


def check_dialect(dialect: str, readable: Collection[str] = READABLE) -> None:
    """Refuse candidates whose primitives the features of a network do not read.

    Parameters
    ----------
    dialect : str
        Name of the candidates' dialect.
    readable : collection of str
        Names of the dialects that the features read.

    Raises
    ------
    InvalidBody
        With the code ``unsupported``: another version may read the dialect.
    """
    if dialect not in readable:
        raise InvalidBody(
            f"task.dialect: expected one that this model version reads ({', '.join(readable)}), got {dialect!r}; "
            "ask for a version that was trained on it",
            code="unsupported",
        )
