"""Which folders are record stores, or may become one. Imports no Arrow, which a server does not need."""

from __future__ import annotations

from pathlib import Path

from tlp_service.errors import BadRecords

#: Names of a store's note, which says its form and seed, and of the file whose lock a writer holds.
NOTE, LOCK = "store.json", "lock"


def check_store_path(folder: Path) -> None:
    """Refuse a folder that can never be a record store, before Arrow fails at each record.

    Raises
    ------
    BadRecords
        If the name is not UTF-8, or the folder holds something else.
    """
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise BadRecords(f"{str(folder)!r}: expected a path in UTF-8; name another folder") from None
    # Files are listed before the note is checked, since recorder and trainer may create the store at the same time:
    # the other process writes the note before all other files, so a listed file of a store implies a note.
    strangers = [path.name for path in folder.iterdir() if not _is_own(path.name)] if folder.exists() else []
    if strangers and not (folder / NOTE).exists():
        raise BadRecords(f"{folder} is neither a record store nor empty")


def is_store(path: Path) -> bool:
    """Return whether a path is a record store."""
    return (path / NOTE).is_file()


def _is_own(name: str) -> bool:
    """Return whether a folder with this file may become a store: it belongs to a maker, which may have been killed."""
    return name == LOCK or name.startswith(f".{NOTE}.")
