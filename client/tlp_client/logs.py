"""Tuning logs: files of record lines, some of them damaged."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from tlp_client.errors import InvalidInput
from tlp_client.records import Record, RecordParser

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

#: endings of the names that tuning logs have
LOG_SUFFIXES = (".json", ".log", ".gz")


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line of a log that is no record: where it stands, and why it was refused."""

    source: str
    number: int
    reason: str

    @property
    def cause(self) -> str:
        """The reason without its details, to count by."""
        return re.sub(r"\W*\d.*", "", self.reason.split(":")[0])

    def __str__(self) -> str:
        return f"{self.source}:{self.number}: {self.reason}"


@dataclass(slots=True)
class LogReader:
    """Reads a tuning log from lines, keeping what is good and saying what is not.

    Blank lines and comments (``#``) are skipped. Nothing that stands on one line stops the others.

    Parameters
    ----------
    parser : RecordParser
        Shared between files so that equal primitives are one object.
    """

    parser: RecordParser = field(default_factory=RecordParser)
    refused: list[RefusedLine] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def read_file(self, path: str | Path) -> Iterator[Record]:
        """Yield the records of a log file, plain or gzip-compressed; refused lines go to `refused`."""
        path = Path(path)
        with open_log(path) as lines:
            for _, outcome in self.read_lines(lines_of(lines), str(path)):
                if isinstance(outcome, Record):
                    yield outcome

    def read_lines(
        self, lines: Iterable[bytes], source: str = "input"
    ) -> Iterator[tuple[int, Record | RefusedLine]]:
        """Yield ``(line number, record or refused line)`` for each line that is not blank or a comment."""
        number = 0
        try:
            for number, raw in enumerate(lines, start=1):
                outcome = self._read_line(raw, source, number)
                if outcome is not None:
                    yield number, outcome
        except (EOFError, OSError, zlib.error) as error:
            # The rest of a damaged gzip file can't be read; what came before is kept.
            yield number + 1, self._refuse(source, number + 1, f"the rest cannot be read: {error}")

    def _read_line(self, raw: bytes, source: str, number: int) -> Record | RefusedLine | None:
        if number == 1 and raw.startswith(b"\xef\xbb\xbf"):
            raw = raw[3:]
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            return self._refuse(source, number, f"not UTF-8: {error.reason} at byte {error.start}")
        line = line.strip()
        if not line:
            return None
        if line.startswith("#"):
            self.counts["comments"] += 1
            return None
        try:
            record = self.parser.parse(line)
        except InvalidInput as error:
            return self._refuse(source, number, str(error))
        self.counts["records"] += 1
        return record

    def _refuse(self, source: str, number: int, reason: str) -> RefusedLine:
        refused = RefusedLine(source, number, reason)
        self.refused.append(refused)
        self.counts["refused"] += 1
        return refused


def open_log(path: Path) -> BinaryIO:
    """Open a log for reading its lines as bytes, plain or gzip-compressed whatever its name says."""
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    return cast("BinaryIO", io.BufferedReader(_GzipFile(path), 1 << 16)) if is_gzip else path.open("rb")


def lines_of(file: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a log up to the first that does not end.

    The log of a search that runs grows while it is read: without this, the rest of its last line would be taken for a line.
    """
    for line in file:
        yield line
        if not line.endswith(b"\n"):
            return


class _GzipFile(gzip.GzipFile):
    """A gzip file below a `BufferedReader`, which finds lines without the interpreter.

    It hands up what it has decompressed so far: gzip's own `readinto` fills the buffer or, in a damaged file, loses all of it.
    """

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self.readinto1(buffer)
