"""Which platform a log's records were measured on.

K80 and V100 logs carry the same target and hardware parameters, so a record alone cannot tell: the caller
says it, by one name for all records or by a table (CSV) that maps folders to platforms.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tlp_client.errors import InvalidRequest
from tlp_client.records import Record
from tlp_client.tasks import platform_kind
from tlp_client.wire.fields import read_name
from tlp_service.errors import BadSettings

#: path of a log -> function of its records -> platform name, or None to leave the record out
PlatformOf = Callable[[Path], Callable[[Record], "str | None"]]


@dataclass(frozen=True, slots=True)
class PlatformRow:
    """One line of the table: records under `folder` for which `condition` holds are of `platform`."""

    folder: Path
    condition: Callable[[Record], bool]
    platform: str


@dataclass(frozen=True, slots=True)
class PlatformTable:
    """Platforms by folder; a log outside every folder, or a record that fits no row, has none."""

    rows: tuple[PlatformRow, ...]

    @classmethod
    def read(cls, path: Path, only_shippable: bool = False) -> PlatformTable:
        """Read a CSV with columns ``folder, where, platform, may_ship_weights``; folders are relative to it.

        Parameters
        ----------
        path : Path
            The table.
        only_shippable : bool
            Keep only the rows whose ``may_ship_weights`` is ``yes``.
        """
        rows = []
        try:
            with path.open(newline="") as file:
                for number, row in enumerate(csv.DictReader(file), start=2):
                    try:
                        folder = (path.parent / row["folder"]).resolve()
                        check_platform(row["platform"])
                        entry = PlatformRow(folder, _condition(row["where"]), row["platform"])
                        may_ship = row["may_ship_weights"] == "yes"
                    except (KeyError, ValueError, BadSettings) as error:
                        raise BadSettings(f"{path}:{number}: {error}") from None
                    if may_ship or not only_shippable:
                        rows.append(entry)
        except OSError as error:
            raise BadSettings(f"{path}: {error.strerror}") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise BadSettings(f"{path}: no CSV: {error}") from None
        return cls(tuple(rows))

    def __call__(self, path: Path) -> Callable[[Record], str | None]:
        """Return the function that tells the platform of a record of this log, or None."""
        resolved = path.resolve()
        rows = [row for row in self.rows if resolved.is_relative_to(row.folder)]

        def platform_of(record: Record) -> str | None:
            for row in rows:
                if row.condition(record):
                    return row.platform
            return None

        return platform_of


def check_platform(name: str) -> None:
    """Raise `BadSettings` where nobody could ask for a platform of this name.

    ``cpu`` and ``gpu`` are taken: they mean any hardware of the kind.
    """
    try:
        read_name(name, "platform")
    except InvalidRequest as error:
        raise BadSettings(str(error)) from None
    if name in ("cpu", "gpu"):
        raise BadSettings(f"platform: {name!r} means any {name}; give this hardware a name of its own")


@dataclass(frozen=True, slots=True)
class _Condition:
    """Holds for a record with this text in its target and this first hardware parameter, where they are stated."""

    text: str = ""
    cores: int | None = None

    def __call__(self, record: Record) -> bool:
        hardware = record.task.hardware
        has_cores = self.cores is None or (hardware is not None and hardware[0] == self.cores)
        return self.text in record.task.target and has_cores


@dataclass(frozen=True, slots=True)
class OnePlatform:
    """The same platform for all records; without a name that of the kind of their target."""

    name: str | None = None

    def __call__(self, path: Path) -> Callable[[Record], str | None]:
        """Return the function that tells the platform of a record."""
        return lambda record: self.name or platform_kind(record.task.target)


def _condition(where: str) -> Callable[[Record], bool]:
    if not where:
        return _Condition()
    if found := re.fullmatch(r"target has (\S+)", where):
        return _Condition(text=found.group(1))
    if found := re.fullmatch(r"hardware parameters start with (-?\d+)", where):
        return _Condition(cores=int(found.group(1)))
    raise ValueError(
        f"column 'where' holds {where!r}; known: 'target has X', 'hardware parameters start with N'"
    )
