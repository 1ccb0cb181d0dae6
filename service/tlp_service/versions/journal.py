"""The registry's journal: the active version, the history of activations, and marks on versions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any, Literal

import msgspec

from tlp_service.errors import BadVersion

FORM = 1

#: Maximum number of activations in the history.
_MAX_ACTIVATIONS = 200

#: Number of latest marks that keep their figures; earlier ones keep state and reason only.
#: So the document stays small even if no version is ever pruned.
_MAX_MARKS_WITH_FIGURES = 100

#: Maximum characters of a mark's reason, which may contain an error of another program.
_MAX_REASON = 2000


class Activation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The activation of a version.

    Parameters
    ----------
    version : str
        The version.
    at : str
        UTC time, ISO 8601.
    by, reason : str
        The person or program that activated the version, and the reason.
    is_return : bool
        Whether the activation was a roll-back.
    """

    version: str
    at: str
    by: str
    reason: str = ""
    is_return: bool = False


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mark that keeps a version from serving.

    Parameters
    ----------
    state : {"rejected", "failed"}
        ``rejected``: the gate rejected the version. ``failed``: a server could not load it.
    reason, at : str
        The reason, and the UTC time in ISO 8601.
    figures : dict
        The gate's comparisons.
    """

    state: Literal["rejected", "failed"]
    reason: str
    at: str
    figures: dict[str, Any] = {}


class Journal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The document ``active.json``; replaced as a whole.

    Parameters
    ----------
    form : int
        Version of the document's format.
    active : str or None
        The version that serves.
    history : list of Activation
        Activations, the oldest first.
    marks : dict
        Version -> the mark that keeps it from serving.
    """

    form: int = FORM
    active: str | None = None
    history: list[Activation] = []
    marks: dict[str, Mark] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the journal has no entries, since the registry is new or its files have disappeared."""
        return self.active is None and not self.history and not self.marks

    @classmethod
    def decode(cls, encoded: bytes | None) -> Journal:
        """Decode the document; None gives an empty journal.

        Raises
        ------
        BadVersion
            If it is damaged or of another form.
        """
        if encoded is None:
            return cls()
        try:
            journal = msgspec.json.decode(encoded, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadVersion(f"the registry's active.json: {error}") from None
        if journal.form != FORM:
            raise BadVersion(f"the registry's active.json: form {journal.form}, this server reads {FORM}")
        return journal

    def encode(self) -> bytes:
        """Return the document."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    def activated(self, activation: Activation) -> Journal:
        """Return the journal after an activation, without the mark of the activated version."""
        history = [*self.history, activation][-_MAX_ACTIVATIONS:]
        marks = {version: mark for version, mark in self.marks.items() if version != activation.version}
        return Journal(FORM, activation.version, history, marks)

    def marked(self, version: str, mark: Mark) -> Journal:
        """Return the journal with a mark."""
        others = {name: held for name, held in self.marks.items() if name != version}
        bounded = msgspec.structs.replace(mark, reason=mark.reason[:_MAX_REASON])
        marks = {**others, version: bounded}
        for name in list(marks)[:-_MAX_MARKS_WITH_FIGURES]:
            marks[name] = msgspec.structs.replace(marks[name], figures={})
        return Journal(FORM, self.active, self.history, marks)

    def without(self, versions: list[str]) -> Journal:
        """Return the journal without the marks of versions that are deleted."""
        marks = {version: mark for version, mark in self.marks.items() if version not in versions}
        return Journal(FORM, self.active, self.history, marks)

    def recent(self, count: int) -> list[str]:
        """Return the versions that served last, each once, the active one first."""
        latest = [entry.version for entry in reversed(self.history)]
        named = dict.fromkeys([self.active, *latest] if self.active is not None else latest)
        return [version for version in named if version is not None][:count]

    def earlier(self) -> Iterator[str]:
        """Yield the versions that served before the active one, latest first.

        Versions that were rolled back are left out, so a second roll-back goes one further back, not forth.
        """
        served: list[str] = []
        for entry in self.history:
            if entry.is_return and entry.version in served:
                del served[len(served) - served[::-1].index(entry.version) :]
            elif not served or served[-1] != entry.version:
                served.append(entry.version)
        yield from (version for version in reversed(served) if version != self.active)


def now() -> str:
    """Return the current time in the journal's format."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
