"""Requests whose body is a tuning log (``application/x-ndjson``)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np

from tlp_client.logs import LogReader, RefusedLine
from tlp_client.primitives import Primitive
from tlp_client.records import Record, RecordParser
from tlp_client.tasks import Task
from tlp_client.wire.predict import PredictRequest
from tlp_service.api.answers import BodyTooLarge
from tlp_service.api.decoded import let_go
from tlp_service.api.request_memory import Reservation
from tlp_service.errors import InvalidBody
from tlp_service.scheduling.steps import Steps, finished

#: Maximum bytes of the tasks and primitives that the reader of a log caches.
_REMEMBERED_BYTES = 8 << 20
#: Bytes of a record without its task and primitives, or of a refused line.
RECORD_BYTES = 700
#: Bytes of a log's records after which the count of the request's memory is updated.
_COUNTED_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class LogLines:
    """The lines of a log that are not blank or comments.

    Parameters
    ----------
    numbers : list of int
        Line numbers, from 1.
    outcomes : list of Record or RefusedLine
        Record or refusal of each line.
    """

    numbers: list[int]
    outcomes: list[Record | RefusedLine]


#: Number of a line, from 1, and its record or refusal.
LineOutcome: TypeAlias = tuple[int, Record | RefusedLine]

#: A task of a log, and the positions of its candidates in the log.
LogTask: TypeAlias = tuple[Task, list[int]]

#: Lines, and bytes of them, that are read in one step; at least one line.
_STEP_LINES, _STEP_BYTES = 256, 16 << 10
#: Units of work of a line, see `tlp_service.scheduling.steps`; a byte is one more. So is, after its step,
#: each byte of a task or primitive that was not seen before.
_LINE_COST, _MADE_COST = 300, 1
#: Candidates that are indexed in one step, and units of work of each of their primitives.
_STEP_CANDIDATES, _INDEX_COST = 512, 15
#: Upper bounds on the tasks and candidates of one log that are prepared at a time.
_GROUP_TASKS, _GROUP_CANDIDATES = 64, 2048


def read_log(body: bytes, limit: int, memory: Reservation) -> LogLines:
    """Return the lines of a log, see `log_in_steps`."""
    return finished(log_in_steps(body, limit, memory))


def log_in_steps(body: bytes, limit: int, memory: Reservation, dialect: str | None = None) -> Steps[LogLines]:
    """Read the lines of a log, in steps that each take a bounded time, and count in `memory` what they take.

    Raises
    ------
    InvalidBody
        See `lines_in_steps`.
    BodyTooLarge
        If there are more than `limit`, or they take more memory than one decoded body may.
    QueueFull
        If other requests leave no memory for them.
    """
    lines = LogLines([], [])
    parser = RecordParser(_REMEMBERED_BYTES, dialect)
    counted = 0

    def take(outcomes: Sequence[LineOutcome]) -> None:
        nonlocal counted
        lines.numbers.extend(number for number, _ in outcomes)
        lines.outcomes.extend(outcome for _, outcome in outcomes)
        taken = parser.made_bytes + RECORD_BYTES * len(lines.outcomes)
        if taken - counted >= _COUNTED_BYTES:
            memory.decoding.check(taken)
            memory.need(taken - counted)
            counted = taken

    yield from lines_in_steps(body, limit, take, parser)
    return lines


def lines_in_steps(
    body: bytes, limit: int, take: Callable[[Sequence[LineOutcome]], None], parser: RecordParser
) -> Steps[None]:
    """Read the lines of a log, in steps that each take a bounded time.

    Parameters
    ----------
    take : callable
        Is called with what each step has read: line numbers, from 1, and for each a record or a refusal.

    Raises
    ------
    InvalidBody
        If there is none, or the log is compressed and nothing says so.
    BodyTooLarge
        If there are more than `limit`.
    """
    if body.startswith(b"\x1f\x8b"):
        raise InvalidBody("body: a gzip file; send it with Content-Encoding: gzip")
    reader, rest, first, count = LogReader(parser), io.BytesIO(body), 1, 0
    surplus = 0
    while lines := list(islice(_short_of(rest), _STEP_LINES)):
        yield surplus + sum(map(len, lines)) + _LINE_COST * len(lines)
        made_before = parser.made_bytes
        outcomes = list(reader.read_lines(lines, "line", first))
        surplus = _MADE_COST * (parser.made_bytes - made_before)
        if count + len(outcomes) > limit:
            raise BodyTooLarge(
                f"line {outcomes[limit - count][0]}: more than the {limit} records that one request may hold"
            )
        count += len(outcomes)
        take(outcomes)
        first += len(lines)
    if not count:
        raise InvalidBody("body: the log holds no record")
    yield surplus


def _short_of(rest: io.BytesIO) -> Iterator[bytes]:
    """Yield lines up to the number of bytes of one step."""
    begin = rest.tell()
    while rest.tell() - begin < _STEP_BYTES and (line := rest.readline()):
        yield line


def tasks_in_steps(
    body: bytes, limit: int, memory: Reservation, dialect: str | None = None
) -> Steps[tuple[LogLines, list[LogTask]]]:
    """Read a log in steps of bounded time, and return its lines and its tasks."""
    with let_go():
        lines = yield from log_in_steps(body, limit, memory, dialect)
    by_task: dict[Task, list[int]] = {}
    yield _LINE_COST * len(lines.outcomes)
    for position, outcome in enumerate(lines.outcomes):
        if isinstance(outcome, Record):
            by_task.setdefault(outcome.task, []).append(position)
    return lines, list(by_task.items())


def groups_of(tasks: Sequence[LogTask]) -> Iterator[list[LogTask]]:
    """Yield the tasks of a log in groups of bounded size; a larger task is a group by itself."""
    group: list[LogTask] = []
    candidates = 0
    for task, positions in tasks:
        is_full = len(group) >= _GROUP_TASKS or candidates + len(positions) > _GROUP_CANDIDATES
        if group and is_full:
            yield group
            group, candidates = [], 0
        group.append((task, positions))
        candidates += len(positions)
    if group:
        yield group


def request_in_steps(
    lines: LogLines, task: LogTask, platform: str | None, version: str | None
) -> Steps[PredictRequest]:
    """Make the predict request of a task of a log, in steps of bounded time."""
    known: dict[Primitive, int] = {}
    indices: list[int] = []
    lengths: list[int] = []
    positions = task[1]
    for begin in range(0, len(positions), _STEP_CANDIDATES):
        records = [lines.outcomes[p] for p in positions[begin : begin + _STEP_CANDIDATES]]
        candidates = [record.primitives for record in records if isinstance(record, Record)]
        lengths += map(len, candidates)
        yield _LINE_COST + _INDEX_COST * sum(lengths[begin:])
        indices += [known.setdefault(p, len(known)) for candidate in candidates for p in candidate]
    return PredictRequest(
        workload_key=task[0].workload_key,
        target=task[0].target,
        platform=platform,
        version=version,
        report_invalid=True,
        primitives=list(known),
        indices=np.array(indices, dtype=np.int64),
        lengths=np.array(lengths, dtype=np.int64),
        dialect=task[0].dialect,
    )
