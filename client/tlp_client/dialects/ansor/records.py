"""Check and write Ansor's records.

A record is ``{"i": [task, [[], steps]], "r": [costs, error_no, all_cost, timestamp], "v": "v0.6"}``
(TVM 0.19, ``src/auto_scheduler/measure_record.cc``).
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tlp_client.dialects.ansor.tasks import read_task
from tlp_client.errors import InvalidRecord, shown
from tlp_client.primitives import Primitive
from tlp_client.records import MAX_COSTS, Record
from tlp_client.tasks import Task

VERSIONS = ("v0.2", "v0.3", "v0.4", "v0.5", "v0.6")

#: TVM's ``MeasureErrorNo``: the meaning of each error number.
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

_LARGEST = sys.float_info.max


def read_input(document: object) -> tuple[Task, list[Any]]:
    """Check the input part of a record, and return its task and its still unchecked steps.

    Raises
    ------
    InvalidRecord
        If the document is not a record, or its task is invalid.
    """
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
    return task, state[1]


def read_result(task: Task, primitives: tuple[Primitive, ...], document: Any) -> Record:
    """Check the result and the version of a record, and return the whole record.

    Raises
    ------
    InvalidRecord
        If one of them is missing or invalid; the message names the part.
    """
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
    if type(all_cost) not in (float, int) or not -_LARGEST <= all_cost <= _LARGEST:
        raise InvalidRecord(f"r[2], the whole cost, is a finite number in seconds, not {shown(all_cost)}")
    if type(timestamp) not in (float, int) or not -_LARGEST <= timestamp <= _LARGEST:
        raise InvalidRecord(f"r[3], the timestamp, is a finite number in seconds, not {shown(timestamp)}")
    return Record(task, primitives, tuple(costs), error_no, all_cost, timestamp, version)


def line_of(record: Record, task: str, steps: str) -> str:
    """Return the line of a record as TVM writes and reads it, given the JSON text of task and steps."""
    costs = ", ".join(map(_number, record.costs))
    result = f"[[{costs}], {record.error_no}, {_number(record.all_cost)}, {_number(record.timestamp)}]"
    return f'{{"i": [{task}, [[], {steps}]], "r": {result}, "v": {json.dumps(record.version)}}}'


def _number(value: float) -> str:
    """Return a number with 6 digits, as C++ streams print it, or with all digits if 6 would change it."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
