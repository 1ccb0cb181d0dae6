"""The task of an Ansor record."""

from __future__ import annotations

from typing import Any

from tlp_client.dialects.ansor.primitives import is_int32
from tlp_client.errors import InvalidRecord, is_text
from tlp_client.tasks import MAX_TARGET, MAX_WORKLOAD_KEY, Task

#: Names of the eight hardware parameters of a record, in order (``HardwareParamsNode`` of TVM).
HARDWARE_PARAMETERS = (
    "num_cores",
    "vector_unit_bytes",
    "cache_line_bytes",
    "max_shared_memory_per_block",
    "max_local_memory_per_block",
    "max_threads_per_block",
    "max_vthread_extent",
    "warp_size",
)


def read_task(array: object) -> Task:
    """Check the task array of a record (2 to 6 elements, by log version) and return it typed.

    Raises
    ------
    InvalidRecord
        If an element is missing or of a wrong type.
    """
    if not isinstance(array, list) or not 2 <= len(array) <= 6:
        raise InvalidRecord("the task is a list of 2 to 6 elements: [workload key, target, …]")
    fields: list[Any] = list(array) + [None] * (6 - len(array))
    workload_key, target, hardware, host, layout, names = fields
    if not is_text(workload_key) or not 0 < len(workload_key) <= MAX_WORKLOAD_KEY:
        raise InvalidRecord(f"task[0], the workload key, is a string of 1 to {MAX_WORKLOAD_KEY} characters")
    if not is_text(target) or not target.strip() or len(target) > MAX_TARGET:
        raise InvalidRecord(f"task[1], the target, is a string of 1 to {MAX_TARGET} characters")
    if hardware is not None:
        if type(hardware) is not list or len(hardware) != 8 or not all(map(is_int32, hardware)):
            raise InvalidRecord("task[2], the hardware parameters, are 8 integers in 32 bits")
        hardware = tuple(hardware)
    if host is not None and not is_text(host):
        raise InvalidRecord("task[3], the target host, is a string")
    if layout is not None and type(layout) is not int:
        raise InvalidRecord("task[4], the layout rewrite option, is an integer")
    if names is not None:
        if type(names) is not list or not all(map(is_text, names)):
            raise InvalidRecord("task[5], the task input names, are a list of strings")
        names = tuple(names)
    if len(array) > 2 and any(f is None for f in fields[2 : len(array)]):
        raise InvalidRecord("no element of the task is null")
    return Task(workload_key, target, hardware, host, layout, names)


def task_json(task: Task) -> list[Any]:
    """Return the task array of a record, as long as the one that was read."""
    array: list[Any] = [task.workload_key, task.target]
    for field in (task.hardware, task.target_host, task.layout_rewrite_option, task.input_names):
        if field is None:
            break
        array.append(list(field) if isinstance(field, tuple) else field)
    return array
