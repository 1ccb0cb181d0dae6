"""Requests whose body is a tuning log as it lies on disk (``application/x-ndjson``)."""

from __future__ import annotations

import io
from dataclasses import dataclass

from tlp_client.errors import InvalidRequest
from tlp_client.logs import LogReader, RefusedLine
from tlp_client.records import Record
from tlp_client.tasks import Task
from tlp_client.wire.measurements import Measurement, check_measured, measurement_id
from tlp_client.wire.predict import PredictRequest, request_of
from tlp_service.errors import BodyTooLarge, InvalidBody


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


def read_log(body: bytes, limit: int) -> LogLines:
    """Return the lines of a log.

    Raises
    ------
    InvalidBody
        If there is none, or the log is compressed and nothing says so.
    BodyTooLarge
        If there are more than `limit`.
    """
    if body.startswith(b"\x1f\x8b"):
        raise InvalidBody("body: a gzip file; send it with Content-Encoding: gzip")
    numbers: list[int] = []
    outcomes: list[Record | RefusedLine] = []
    for number, outcome in LogReader().read_lines(io.BytesIO(body), "line"):
        if len(numbers) >= limit:
            raise BodyTooLarge(f"line {number}: more than the {limit} records that one request may hold")
        numbers.append(number)
        outcomes.append(outcome)
    if not numbers:
        raise InvalidBody("body: the log holds no record")
    return LogLines(numbers, outcomes)


def predict_requests(
    lines: LogLines, platform: str | None, version: str | None
) -> list[tuple[PredictRequest, list[int]]]:
    """Return one predict request for each task of the log, with the positions of its candidates."""
    by_task: dict[Task, list[int]] = {}
    for position, outcome in enumerate(lines.outcomes):
        if isinstance(outcome, Record):
            by_task.setdefault(outcome.task, []).append(position)
    requests = []
    for task, positions in by_task.items():
        records = [r for p in positions if isinstance(r := lines.outcomes[p], Record)]
        candidates = (record.primitives for record in records)
        requests.append((request_of(task, candidates, platform, version), positions))
    return requests


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
