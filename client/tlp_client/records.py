"""Ansor tuning records: JSON lines of all log versions, typed, and back to text.

A line is ``{"i": [task, [[], steps]], "r": [costs, error_no, all_cost, timestamp], "v": "v0.6"}``
(TVM 0.19, ``src/auto_scheduler/measure_record.cc``).

Logs repeat themselves: the records of a file share their task, and 2,048 candidates of one search hold
some 360 distinct primitives. So `RecordParser` splits a line at the fixed text between primitives and looks the
pieces up. A piece is only ever taken for a primitive when it parses as one by itself, which makes the split
exact: if every piece between the separators is a JSON list, the whole is the list of them. Whatever does
not fit that layout is parsed as plain JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from tlp_client.bounded import BoundedCache, memory_of
from tlp_client.errors import InvalidPrimitive, InvalidRecord, shown
from tlp_client.primitives import Primitive, check_candidate, read_primitive
from tlp_client.tasks import Task, read_task

VERSIONS = ("v0.2", "v0.3", "v0.4", "v0.5", "v0.6")

#: ``MeasureErrorNo`` of TVM
ERRORS = {
    0: "no error",
    1: "instantiation",
    2: "compile host",
    3: "compile device",
    4: "runtime device",
    5: "wrong answer",
    6: "build timeout",
    7: "run timeout",
    8: "unknown",
}

#: Seconds. A cost outside is no measurement: clocks do not resolve 1 ns, and TVM writes 1e10 for a failed run.
MIN_COST_S, MAX_COST_S = 1e-9, 1e9

#: Maximum number of measured run times of a record. Public records have at most 10.
MAX_COSTS = 1000

#: Maximum bytes of a record's line as `Record.to_line` writes it. Public records (1.7 million) have at most 2,094.
MAX_LINE_BYTES = 64 << 10
#: A line of at most so many characters surely has fewer bytes than `MAX_LINE_BYTES`, whatever its characters and blanks.
_SURELY_SHORT = MAX_LINE_BYTES >> 3
#: Maximum characters of a 32-bit number in a list, including the separator.
_CHARACTERS_PER_ENTRY = 13

_STEPS_BEGIN = '], [[], [["'
_STEPS_END = ']]]], "r": '
_STEP_SEPARATOR = '], ["'
_NO_STEPS = '], [[], []]], "r": '
#: Bytes of the tasks and primitives that a parser remembers, and the divisor that gives the share for tasks.
_CACHE_BYTES = 64 << 20
_TASKS_SHARE = 8
_LARGEST = sys.float_info.max

#: text -> JSON at its beginning, and where that ends; less work than `json.loads`
_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class Record:
    """A candidate with its measured costs.

    Parameters
    ----------
    task : Task
        Workload and target.
    primitives : tuple of Primitive
        The schedule, in order; equal primitives of one parser are one object.
    costs : tuple of float
        Measured run times in seconds; one or more a record, meaningless where ``error_no`` is not 0.
    error_no : int
        0 or what failed, see `ERRORS`.
    all_cost : float
        Seconds spent on building and measuring.
    timestamp : int
        Unix time in seconds.
    version : str
        Version of the log format, ``v0.2`` to ``v0.6``.
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
        """Whether the run succeeded and every cost can be a run time."""
        return is_run(self.error_no, self.costs)

    def to_json(self) -> dict[str, Any]:
        """Return the record as the object that stands on its line."""
        return {
            "i": [self.task.to_json(), [[], [p.to_json() for p in self.primitives]]],
            "r": [list(self.costs), self.error_no, self.all_cost, self.timestamp],
            "v": self.version,
        }

    def to_line(self) -> str:
        """Return the record as TVM writes it and its ``RecordReader`` loads it, without a newline."""
        task, (_, steps) = self.to_json()["i"]
        return self.line_of(json.dumps(task, ensure_ascii=False), json.dumps(steps, ensure_ascii=False))

    def line_of(self, task: str, steps: str) -> str:
        """Return the line, for which task and steps are JSON already."""
        costs = ", ".join(map(_number, self.costs))
        result = f"[[{costs}], {self.error_no}, {_number(self.all_cost)}, {_number(self.timestamp)}]"
        return f'{{"i": [{task}, [[], {steps}]], "r": {result}, "v": {json.dumps(self.version)}}}'


def is_run(error_no: int, costs: Sequence[float]) -> bool:
    """Return whether a run succeeded and every cost can be a run time."""
    if error_no != 0 or not costs:
        return False
    for cost in costs:  # noqa: SIM110 - `all` takes four times as long, and logs have millions of records
        if not MIN_COST_S <= cost < MAX_COST_S:
            return False
    return True


def split_primitives(lines: Iterable[str]) -> tuple[list[str], list[list[int]]]:
    """Return the JSON text of each distinct primitive of lines that TVM wrote, and which of them each line holds.

    Nothing is parsed: a search asks for the scores of 2,048 lines at a time.

    Raises
    ------
    InvalidRecord
        If a line is not laid out as TVM lays it out.
    """
    known: dict[str, int] = {}
    candidates: list[list[int]] = []
    for line in lines:
        begin, end = line.find(_STEPS_BEGIN), line.rfind(_STEPS_END)
        if not 0 <= begin < end:
            if _NO_STEPS not in line:
                raise InvalidRecord("the line is not laid out as TVM writes it")
            candidates.append([])
            continue
        pieces = line[begin + len(_STEPS_BEGIN) : end].split(_STEP_SEPARATOR)
        try:
            candidates.append(list(map(known.__getitem__, pieces)))
        except KeyError:
            candidates.append([known.setdefault(piece, len(known)) for piece in pieces])
    return ['["' + piece + "]" for piece in known], candidates


class RecordParser:
    """Parses record lines; remembers the tasks and primitives it has seen.

    Parameters
    ----------
    max_bytes : int
        Bytes of the tasks and primitives that it remembers.
    """

    def __init__(self, max_bytes: int = _CACHE_BYTES) -> None:
        self._tasks: BoundedCache[str, Task] = BoundedCache(max_bytes // _TASKS_SHARE)
        self._primitives: BoundedCache[str, Primitive] = BoundedCache(max_bytes - max_bytes // _TASKS_SHARE)
        #: Bytes of all tasks and primitives that this parser has made, whether it still remembers them or not.
        self.made_bytes = 0

    def counting(self) -> RecordParser:
        """Return a parser that shares the caches of this one and counts `made_bytes` from 0, for one request of many."""
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
        record = self._parse_by_pieces(line)
        if record is None:
            record = self._parse_whole(line)
            self.made_bytes += record.task.nbytes + memory_of(record.primitives)
        if len(line) > _SURELY_SHORT:
            check_line(record)
        return record

    def _parse_by_pieces(self, line: str) -> Record | None:
        begin = line.find(_STEPS_BEGIN)
        end = line.rfind(_STEPS_END)
        if begin < 0 or end < begin:
            return None
        pieces = line[begin + len(_STEPS_BEGIN) : end].split(_STEP_SEPARATOR)
        try:
            task = self._tasks.get(line[:begin]) or self._read_head(line[:begin])
            try:
                primitives = tuple(map(self._primitives.__getitem__, pieces))
            except KeyError:
                primitives = tuple(map(self._read_piece, pieces))
            tail = '{"r": ' + line[end + len(_STEPS_END) :]
            document, length = _decode(tail)
        except (ValueError, RecursionError):
            return None  # parsing it whole finds the reason
        if length != len(tail):
            return None
        check_candidate(primitives)
        return _read_result(task, primitives, document)

    def _read_head(self, head: str) -> Task:
        opened = json.loads(head + "]]}")
        if not isinstance(opened, dict) or list(opened) != ["i"] or len(opened["i"]) != 1:
            raise InvalidRecord("the line does not begin with the task")
        task = read_task(opened["i"][0])
        nbytes = task.nbytes
        self.made_bytes += nbytes
        return self._tasks.add(head, task, sys.getsizeof(head) + nbytes)

    def _read_piece(self, piece: str) -> Primitive:
        known = self._primitives.get(piece)
        if known is None:
            known = read_primitive(json.loads('["' + piece + "]"))
            nbytes = memory_of(known)
            self.made_bytes += nbytes
            self._primitives.add(piece, known, sys.getsizeof(piece) + nbytes)
        return known

    def _parse_whole(self, line: str) -> Record:
        try:
            document = json.loads(line)
        except ValueError as error:
            raise InvalidRecord(f"not JSON: {error}") from None
        except RecursionError:
            raise InvalidRecord("not JSON: nested too deeply") from None
        return _read_document(document)


def read_record(document: object) -> Record:
    """Check a record that a JSON parser has read and return it typed.

    Raises
    ------
    InvalidInput
        If it is not a record of a known version, or exceeds a bound; the message names the part.
    """
    record = _read_document(document)
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
    numbers = len(record.costs)
    for primitive in record.primitives:
        for argument in primitive.args:
            numbers += len(argument) if isinstance(argument, (tuple, str)) else 1
    return sum(map(len, texts)) + _CHARACTERS_PER_ENTRY * numbers


def _read_document(document: object) -> Record:
    if not isinstance(document, dict):
        raise InvalidRecord("a record is a JSON object")
    if "i" not in document:
        if "input" in document and "config" in document:
            raise InvalidRecord("an AutoTVM record ('input', 'config', 'result'), not an Ansor record")
        raise InvalidRecord("no 'i': an Ansor record has 'i', 'r' and 'v'")
    measured = document["i"]
    if not isinstance(measured, list) or len(measured) != 2:
        raise InvalidRecord("'i' is a list of two elements: [task, state]")
    task = read_task(measured[0])
    state = measured[1]
    if not isinstance(state, list) or len(state) != 2 or not isinstance(state[1], list):
        raise InvalidRecord("the state, i[1], is a list of two elements: [[], steps]")
    return _read_result(task, read_primitives(state[1]), document)


def read_primitives(steps: Iterable[object]) -> tuple[Primitive, ...]:
    """Check the steps of one candidate; an error names the step's position."""
    primitives = []
    for position, step in enumerate(steps):
        try:
            primitives.append(read_primitive(step))
        except InvalidPrimitive as error:
            raise InvalidPrimitive(f"primitive {position}: {error}") from None
    check_candidate(primitives)
    return tuple(primitives)


def _read_result(task: Task, primitives: tuple[Primitive, ...], document: Any) -> Record:
    if "r" not in document:
        raise InvalidRecord("no 'r': a measure input without its result")
    version = document.get("v")
    if version not in VERSIONS:
        raise InvalidRecord(f"record version {shown(version)} is not one of {', '.join(VERSIONS)}")
    result = document["r"]
    if not isinstance(result, list) or len(result) != 4:
        raise InvalidRecord("'r' is a list of four elements: [costs, error number, all cost, timestamp]")
    costs, error_no, all_cost, timestamp = result
    if type(costs) is not list:
        raise InvalidRecord("r[0], the costs, is a list of numbers in seconds")
    if len(costs) > MAX_COSTS:
        raise InvalidRecord(
            f"r[0], the costs: {len(costs)} are more than the {MAX_COSTS} that a record may have"
        )
    for position, cost in enumerate(costs):
        if type(cost) not in (float, int) or not -_LARGEST <= cost <= _LARGEST:
            raise InvalidRecord(f"r[0][{position}], a cost, is a finite number in seconds, not {shown(cost)}")
    if type(error_no) is not int or error_no not in ERRORS:
        raise InvalidRecord(f"r[1], the error number, is an integer from 0 to 8, not {shown(error_no)}")
    for name, value in (("r[2], the whole cost", all_cost), ("r[3], the timestamp", timestamp)):
        if type(value) not in (float, int) or not -_LARGEST <= value <= _LARGEST:
            raise InvalidRecord(f"{name}, is a finite number in seconds, not {shown(value)}")
    return Record(task, primitives, tuple(costs), error_no, all_cost, timestamp, version)


def _number(value: float) -> str:
    """Return a number as C++ streams print it (6 digits), or with all its digits where that would change it."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
