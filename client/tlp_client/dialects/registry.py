"""The registry of dialects: those of this package, of other packages, and those added with `register`."""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from tlp_client.errors import InvalidRequest, Unsupported, shown
from tlp_client.wire.fields import is_name

if TYPE_CHECKING:
    from tlp_client.dialects.dialect import Dialect

log = logging.getLogger(__name__)

#: Name of the dialect of requests, records and stored rows that state none.
DEFAULT = "ansor"

#: Group of the entry points of other packages, see the docstring of `tlp_client.dialects`.
ENTRY_POINTS = "tlp_client.dialects"

#: Dialects of this package -> module that registers them. It is imported when the dialect is first needed.
_BUILT_IN = {DEFAULT: "tlp_client.dialects.ansor"}

_known: dict[str, Dialect] = {}


def register(dialect: Dialect) -> None:
    """Add a dialect to the registry.

    Raises
    ------
    ValueError
        If its name is not valid, or another dialect has it.
    """
    if not is_name(dialect.name):
        raise ValueError(f"dialect: expected a name, got {shown(dialect.name)}")
    if _known.setdefault(dialect.name, dialect) is not dialect:
        raise ValueError(f"dialect: {dialect.name!r} is registered already; choose another name")


def names() -> tuple[str, ...]:
    """Return the names of all known dialects, sorted."""
    _load_others()
    return tuple(sorted({*_BUILT_IN, *_known}))


def find(name: str | None = None, where: str = "dialect") -> Dialect:
    """Return the dialect with a name; None selects the default one.

    Parameters
    ----------
    name : str or None
        Name of the dialect.
    where : str
        Place of the name, for the error.

    Raises
    ------
    Unsupported
        If there is no dialect with this name. A later release may have it.
    """
    name = name or DEFAULT
    known = _known.get(name)
    return _load(name, where) if known is None else known


def stated_name(name: str) -> str | None:
    """Return the name that requests, stream entries and stored rows state for a dialect.

    It is None for the default dialect, which is never stated.
    """
    return None if name == DEFAULT else name


def read_dialect(value: object, where: str) -> str:
    """Return the name of the dialect of a request; the default one if the request states none.

    Raises
    ------
    Unsupported
        If it is the name of a dialect that is not known here. A later release may know it.
    InvalidRequest
        If it is not a name.
    """
    if value is None:
        return DEFAULT
    if not is_name(value):
        raise InvalidRequest(f"{where}: expected one of {', '.join(names())}, got {shown(value)}")
    return find(value, where).name


def _load(name: str, where: str) -> Dialect:
    if name in _BUILT_IN:
        import_module(_BUILT_IN[name])
    else:
        _load_others()
    found = _known.get(name)
    if found is None:
        known = ", ".join(names())
        raise Unsupported(f"{where}: expected one of {known}, got {shown(name)}; another release may know it")
    return found


@cache
def _load_others() -> None:
    """Register the dialects of other packages.

    A dialect that fails to load is logged and skipped, so that it does not stop the others.
    """
    from importlib.metadata import (
        entry_points,
    )  # a search needs no other dialect, so its worker need not import this

    for point in entry_points(group=ENTRY_POINTS):
        try:
            register(point.load()())
        except Exception:  # whatever a foreign module raises
            log.exception("the dialect %s does not load", point.name)
