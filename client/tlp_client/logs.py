"""Tuning logs: files of record lines, some of them damaged."""

from __future__ import annotations

import gzip
import io
import os
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

#: File name suffixes of tuning logs.
LOG_SUFFIXES = (".json", ".log", ".gz")

#: Maximum bytes of a line. The longest line of the public logs has 5,163.
MAX_LOG_LINE_BYTES = 1 << 20

#: Maximum number of refused lines per log that are kept with line number and reason. Further ones are only
#: counted.
MAX_REFUSED_LINES = 1_000

#: A compressed log may decompress to at most this ratio times its size, plus this number of bytes.
#: Public logs reach a ratio of 62; gzip allows up to 1,032.
MAX_GZIP_RATIO, MAX_SMALL_GZIP_BYTES = 200, 64 << 20


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A refused line of a log, with its place and the reason.

    If `lines` is above 1, the object represents that many lines.
    """

    source: str
    number: int
    reason: str
    lines: int = 1

    @property
    def cause(self) -> str:
        """The reason without its details, for counting."""
        return re.sub(r"\W*\d.*", "", self.reason.split(":")[0])

    def __str__(self) -> str:
        return f"{self.source}:{self.number}: {self.reason}"


@dataclass(slots=True)
class LogReader:
    """Reads the records of a tuning log, and collects the refused lines with their reasons.

    Blank lines and comments (``#``) are skipped. An invalid line never stops the reading of the others.

    Parameters
    ----------
    parser : RecordParser
        Shared between files so that equal primitives are one object.
    """

    parser: RecordParser = field(default_factory=RecordParser)
    refused: list[RefusedLine] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _refused_before: int = 0

    def read_file(self, path: str | Path) -> Iterator[Record]:
        """Yield the records of a log file, plain or gzip-compressed; refused lines go to `refused`."""
        for _, _, record in self.read_file_lines(path):
            yield record

    def read_file_lines(self, path: str | Path) -> Iterator[tuple[bytes, int, Record]]:
        """Yield the line, its number and the record for each record of a log file, see `read_file`.

        A file that cannot be opened or read to its end counts as one refused line; it raises no error.
        """
        path, source = Path(path), source_of(path)
        latest = b""

        def lines(file: BinaryIO) -> Iterator[bytes]:
            nonlocal latest
            for line in lines_of(file):
                latest = line
                yield line

        self._refused_before = self.counts["refused"]
        try:
            file = open_log(path)
        except OSError as error:
            self._refuse(source, 1, f"the log cannot be read: {error.strerror or error}")
            return
        with file:
            for number, outcome in self.read_lines(lines(file), source):
                if isinstance(outcome, Record):
                    yield latest, number, outcome

    def read_lines(
        self, lines: Iterable[bytes], source: str = "input", first: int = 1
    ) -> Iterator[tuple[int, Record | RefusedLine]]:
        """Yield ``(line number, record or refused line)`` for each line, except blank lines and comments.

        `first` is the number of the first line.
        """
        number = first - 1
        self._refused_before = self.counts["refused"]
        try:
            for number, raw in enumerate(lines, start=first):
                outcome = self._read_line(raw, source, number)
                if outcome is not None:
                    yield number, outcome
        except (EOFError, OSError, zlib.error) as error:
            # The rest of a damaged gzip file cannot be read; the records before the damage are kept.
            yield number + 1, self._refuse(source, number + 1, f"the rest cannot be read: {error}")
        more = self.counts["refused"] - self._refused_before - MAX_REFUSED_LINES
        if more > 0:
            self.refused.append(
                RefusedLine(source, number, f"more lines are not records: {more} of them", more)
            )

    def _read_line(self, raw: bytes, source: str, number: int) -> Record | RefusedLine | None:
        if len(raw) > MAX_LOG_LINE_BYTES:
            return self._refuse(
                source, number, f"the line is too long: expected at most {MAX_LOG_LINE_BYTES} bytes"
            )
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
        self.counts["refused"] += 1
        if self.counts["refused"] - self._refused_before <= MAX_REFUSED_LINES:
            self.refused.append(refused)
        return refused


def source_of(path: str | Path) -> str:
    """Return the name of a log as text, even if it is not UTF-8."""
    return os.fsencode(path).decode(errors="backslashreplace")


def open_log(path: Path) -> BinaryIO:
    """Open a log to read its lines as bytes; gzip is detected by its content, not by the file name."""
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    return cast("BinaryIO", io.BufferedReader(_GzipFile(path), 1 << 16)) if is_gzip else path.open("rb")


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a log, and stop after the first line without a newline.

    The log of a running search may grow during reading. Without this stop, the rest of a partial last line
    would be read as a line of its own. If a line is longer than `MAX_LOG_LINE_BYTES`, only its first
    `MAX_LOG_LINE_BYTES` + 1 bytes are yielded.
    """
    while line := file.readline(MAX_LOG_LINE_BYTES + 1):
        yield line
        end = line
        while not end.endswith(b"\n"):
            end = file.readline(MAX_LOG_LINE_BYTES)
            if not end or len(line) <= MAX_LOG_LINE_BYTES:
                return


class _GzipFile(gzip.GzipFile):
    """A gzip file to put under a `BufferedReader`, which finds line ends in C.

    It returns the data decompressed so far. The `readinto` of gzip fills the whole buffer first, and loses
    all of it if the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._max_bytes = MAX_SMALL_GZIP_BYTES + MAX_GZIP_RATIO * path.stat().st_size

    def readinto(self, buffer: WriteableBuffer) -> int:
        size = self.readinto1(buffer)
        if self.tell() > self._max_bytes:
            raise OSError(f"it decompresses to more than {MAX_GZIP_RATIO} times its size")
        return size
