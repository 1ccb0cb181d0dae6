"""Requests whose body is a tuning log as it lies on disk (``application/x-ndjson``)."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np

from tlp_client.errors import InvalidRequest
from tlp_client.logs import LogReader, RefusedLine
from tlp_client.primitives import Primitive
from tlp_client.records import Record, RecordParser
from tlp_client.tasks import Task
from tlp_client.wire.measurements import Measurement, check_measured, measurement_id
from tlp_client.wire.predict import PredictRequest
from tlp_service.api.decoded import let_go
from tlp_service.api.request_memory import Reservation
from tlp_service.errors import BodyTooLarge, InvalidBody
from tlp_service.scheduling.steps import Steps, finished

#: Memory for the tasks and primitives that the reader of a log remembers.
_REMEMBERED_BYTES = 8 << 20
#: Bytes of a record beside its task and primitives, or of a line that was refused.
RECORD_BYTES = 700
#: Bytes of a log's records that are counted at a time.
_COUNTED_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class LogLines:
    """The lines of a log that are not blank or comments.

    Parameters
    ----------
    numbers : list of int
        Line numbers, from 1.
    outcomes : list of Record or RefusedLine
        What stands on each.
    """

    numbers: list[int]
    outcomes: list[Record | RefusedLine]


#: A task of a log, and the positions of its candidates in the log.
LogTask: TypeAlias = tuple[Task, list[int]]

#: Lines that are read in one step, and units of work of each, see `tlp_service.scheduling.steps`; a byte is one more.
_STEP_LINES, _LINE_COST = 256, 300
#: Candidates that are indexed in one step, and units of work of each of their primitives.
_STEP_CANDIDATES, _INDEX_COST = 512, 15
#: Tasks and candidates of one log that are prepared and wait to be scored at a time.
_GROUP_TASKS, _GROUP_CANDIDATES = 64, 2048


def read_log(body: bytes, limit: int, memory: Reservation, parser: RecordParser | None = None) -> LogLines:
    """Return the lines of a log, see `log_in_steps`."""
    return finished(log_in_steps(body, limit, memory, parser))


def log_in_steps(
    body: bytes, limit: int, memory: Reservation, parser: RecordParser | None = None
) -> Steps[LogLines]:
    """Read the lines of a log, in steps that each take a bounded time, and count in `memory` what they take.

    Raises
    ------
    InvalidBody
        If there is none, or the log is compressed and nothing says so.
    BodyTooLarge
        If there are more than `limit`.
    QueueFull
        If other requests leave no memory for them.
    """
    if body.startswith(b"\x1f\x8b"):
        raise InvalidBody("body: a gzip file; send it with Content-Encoding: gzip")
    numbers: list[int] = []
    outcomes: list[Record | RefusedLine] = []
    parser = RecordParser(_REMEMBERED_BYTES) if parser is None else parser.counting()
    counted = 0
    reader, rest, first = LogReader(parser), io.BytesIO(body), 1
    while lines := list(islice(rest, _STEP_LINES)):
        yield sum(map(len, lines)) + _LINE_COST * len(lines)
        for number, outcome in reader.read_lines(lines, "line", first):
            if len(numbers) >= limit:
                raise BodyTooLarge(f"line {number}: more than the {limit} records that one request may hold")
            numbers.append(number)
            outcomes.append(outcome)
            taken = parser.made_bytes + RECORD_BYTES * len(outcomes)
            if taken - counted >= _COUNTED_BYTES:
                memory.need(taken - counted)
                counted = taken
        first += len(lines)
    if not numbers:
        raise InvalidBody("body: the log holds no record")
    return LogLines(numbers, outcomes)


def tasks_in_steps(body: bytes, limit: int, memory: Reservation) -> Steps[tuple[LogLines, list[LogTask]]]:
    """Read a log, in steps that each take a bounded time, and return its lines and its tasks."""
    with let_go():
        lines = yield from log_in_steps(body, limit, memory)
    by_task: dict[Task, list[int]] = {}
    yield _LINE_COST * len(lines.outcomes)
    for position, outcome in enumerate(lines.outcomes):
        if isinstance(outcome, Record):
            by_task.setdefault(outcome.task, []).append(position)
    return lines, list(by_task.items())


def groups_of(tasks: Sequence[LogTask]) -> Iterator[list[LogTask]]:
    """Yield the tasks of a log in groups, so that what is prepared at a time is bounded; a large task is a group of its own."""
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
    """Make the predict request of a task of a log, in steps that each take a bounded time."""
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
    )


def measurements(lines: LogLines, platform: str | None) -> tuple[list[Measurement], list[tuple[int, str]]]:
    """Return the records of a log under ids made of their content, and ``(position, error)`` of the others.

    The same log sent twice is kept once; so is a line that stands in it twice.
    """
    found: dict[str, Measurement] = {}
    errors: list[tuple[int, str]] = []
    for position, outcome in enumerate(lines.outcomes):
        if isinstance(outcome, RefusedLine):
            errors.append((position, f"line {outcome.number}: {outcome.reason}"))
            continue
        try:
            check_measured(outcome)
        except InvalidRequest as error:
            errors.append((position, f"line {lines.numbers[position]}: {error}"))
            continue
        id_ = measurement_id(outcome, platform)
        found.setdefault(id_, Measurement(id_, outcome, position))
    return list(found.values()), errors
