"""Tuning records: candidates with their measured costs, independent of the tuner.

A dialect defines the text form of a record, see `tlp_client.dialects`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from tlp_client.bounded import BoundedCache
from tlp_client.dialects.registry import find
from tlp_client.errors import InvalidRecord
from tlp_client.primitives import Argument, Primitive
from tlp_client.tasks import Task

#: Range of a valid cost in seconds.
#: Clocks do not resolve 1 ns, and TVM writes 1e10 for a failed run.
MIN_COST_S, MAX_COST_S = 1e-9, 1e9

#: Maximum number of measured run times of a record. Public records have at most 10.
MAX_COSTS = 1000

#: Maximum bytes of a record's line as `Record.to_line` writes it. Public records (1.7 million) have at most
#: 2,094.
MAX_LINE_BYTES = 64 << 10
#: A line of at most this many characters certainly has fewer bytes than `MAX_LINE_BYTES`, even if all are
#: escaped.
_SURELY_SHORT = MAX_LINE_BYTES >> 3
#: Maximum characters of a 32-bit number in a list, including the separator.
_CHARACTERS_PER_ENTRY = 13

#: Maximum bytes of a parser's cache of tasks and primitives, and the divisor that gives the share for tasks.
_CACHE_BYTES = 64 << 20
_TASKS_SHARE = 8


@dataclass(frozen=True, slots=True)
class Record:
    """A candidate with its measured costs.

    Parameters
    ----------
    task : Task
        Workload and target; it names the dialect.
    primitives : tuple of Primitive
        The schedule, in order; equal primitives of one parser are one object.
    costs : tuple of float
        One or more measured run times in seconds. They are meaningless if ``error_no`` is not 0.
    error_no : int
        0 if the run succeeded, otherwise the dialect's number of the failure.
    all_cost : float
        Seconds spent on building and measuring.
    timestamp : int
        Unix time in seconds.
    version : str
        Version of the dialect's record form, e.g. ``v0.6``.
    """

    task: Task
    primitives: tuple[Primitive, ...]
    costs: tuple[float, ...]
    error_no: int
    all_cost: float
    timestamp: float
    version: str = "v0.6"

    @property
    def is_valid(self) -> bool:
        """Whether the run succeeded and every cost is a plausible run time."""
        return is_run(self.error_no, self.costs)

    def to_json(self) -> dict[str, Any]:
        """Return the record as the JSON object of its dialect."""
        return find(self.task.dialect).record_json(self)

    def to_line(self) -> str:
        """Return the line of the record in its dialect, without a newline; TVM can load Ansor's lines."""
        return find(self.task.dialect).line(self)


def is_run(error_no: int, costs: Sequence[float]) -> bool:
    """Return whether a run succeeded and every cost is a plausible run time."""
    if error_no != 0 or not costs:
        return False
    for cost in costs:  # noqa: SIM110 - `all` takes four times as long, and logs have millions of records
        if not MIN_COST_S <= cost < MAX_COST_S:
            return False
    return True


def split_primitives(
    candidates: Iterable[str], dialect: str | None = None
) -> tuple[list[str], list[list[int]]]:
    """Return the distinct primitives of candidates as JSON text, and each candidate as indices into them.

    Parameters
    ----------
    candidates : iterable of str
        Candidates as text, see `Dialect.split_primitives`; for Ansor, the record lines that TVM writes.
    dialect : str or None
        Name of the dialect; None for the default one.

    Raises
    ------
    InvalidInput
        If a text does not have the dialect's form.
    """
    return find(dialect).split_primitives(candidates)


class RecordParser:
    """Parses the record lines of one dialect; caches the tasks and primitives it has parsed.

    Parameters
    ----------
    max_bytes : int
        Maximum bytes of the cached tasks and primitives.
    dialect : str or None
        Name of the dialect; None for the default one.

    Attributes
    ----------
    tasks, primitives : BoundedCache
        Caches of parsed objects, by their text.
    made_bytes : int
        Bytes of all tasks and primitives that this parser has created, including evicted ones.
    """

    def __init__(self, max_bytes: int = _CACHE_BYTES, dialect: str | None = None) -> None:
        self.tasks: BoundedCache[str, Task] = BoundedCache(max_bytes // _TASKS_SHARE)
        self.primitives: BoundedCache[str, Primitive] = BoundedCache(max_bytes - max_bytes // _TASKS_SHARE)
        self.made_bytes = 0
        self._parse_line = find(dialect).parse_line

    def counting(self) -> RecordParser:
        """Return a parser for one request, which shares these caches and counts `made_bytes` from 0."""
        parser = copy(self)
        parser.made_bytes = 0
        return parser

    def parse(self, line: str) -> Record:
        """Return the record of one line.

        Raises
        ------
        InvalidInput
            If the line is not a record of a known version; the message names the part.
        """
        if len(line) > MAX_LINE_BYTES:
            raise InvalidRecord(_too_long(len(line)))  # each character has at least one byte
        record = self._parse_line(line, self)
        if len(line) > _SURELY_SHORT:
            check_line(record)
        return record


def read_record(document: object, dialect: str | None = None) -> Record:
    """Check a parsed JSON record and return it typed.

    Parameters
    ----------
    document : object
        Record as a JSON parser returns it.
    dialect : str or None
        Name of the dialect; None for the default one.

    Raises
    ------
    InvalidInput
        If it is not a record of a known version, or exceeds a bound; the message names the part.
    """
    record = find(dialect).read_record(document)
    if _characters(record) > _SURELY_SHORT:
        check_line(record)
    return record


def check_line(record: Record) -> None:
    """Raise `InvalidRecord` if the line of a record has more than `MAX_LINE_BYTES` bytes."""
    length = len(record.to_line().encode())
    if length > MAX_LINE_BYTES:
        raise InvalidRecord(_too_long(length))


def _too_long(length: int) -> str:
    return f"its line has {length} bytes, which are more than the {MAX_LINE_BYTES} that a record may have"


def _characters(record: Record) -> int:
    """Return an upper estimate of the characters of a record's line, without writing it."""
    task = record.task
    texts = (task.workload_key, task.target, task.target_host or "", *(task.input_names or ()))
    numbers = len(record.costs) + sum(_entries(primitive.args) for primitive in record.primitives)
    return sum(map(len, texts)) + _CHARACTERS_PER_ENTRY * numbers


def _entries(arguments: tuple[Argument, ...]) -> int:
    """Return the number of numbers plus the number of characters of strings in arguments."""
    found = 0
    for argument in arguments:
        if isinstance(argument, tuple):
            found += _entries(argument)
        else:
            found += len(argument) if isinstance(argument, str) else 1
    return found
