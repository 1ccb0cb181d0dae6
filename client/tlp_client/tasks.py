"""The task of a candidate: workload and target, as they stand in a record."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from tlp_client.bounded import bounded_function, memory_of
from tlp_client.errors import InvalidRecord, is_text
from tlp_client.primitives import is_int32

PlatformKind = Literal["cpu", "gpu"]

CPU_TARGETS = frozenset({"llvm", "c", "stackvm", "hybrid", "ext_dev"})
GPU_TARGETS = frozenset({"cuda", "nvptx", "rocm", "opencl", "metal", "vulkan", "webgpu"})

#: characters; the longest in public logs are a few hundred
LONGEST_WORKLOAD_KEY, LONGEST_TARGET = 65_536, 4_096

#: Bytes of cached canonical workload keys, and of the cached results of each function of a target.
_KEYS_BYTES, _TARGETS_BYTES = 8 << 20, 1 << 20

#: names of the eight hardware parameters of a record (``HardwareParamsNode`` of TVM)
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


@dataclass(frozen=True, slots=True)
class Task:
    """Workload and target of a record; the fields that old log versions lack are None.

    Parameters
    ----------
    workload_key : str
        As TVM writes it: ``["hash"]``, ``["hash", [shape], ...]`` or ``["function", arg, ...]``.
    target : str
        TVM's target text, e.g. ``llvm -keys=cpu -mcpu=core-avx2``.
    hardware : tuple of int or None
        The eight `HARDWARE_PARAMETERS` (log version v0.3 and later).
    target_host : str or None
        Target of the host code (v0.5 and later; empty where it is the target itself).
    layout_rewrite_option : int or None
        ``LayoutRewriteOption`` of TVM (v0.5 and later).
    input_names : tuple of str or None
        Names of the special inputs (v0.6).
    """

    workload_key: str
    target: str
    hardware: tuple[int, ...] | None = None
    target_host: str | None = None
    layout_rewrite_option: int | None = None
    input_names: tuple[str, ...] | None = None

    @property
    def workload(self) -> str:
        """The workload key in one canonical spelling, to group records by."""
        return canonical_workload_key(self.workload_key)

    @property
    def nbytes(self) -> int:
        """Bytes of the task and all its fields."""
        parts = (self.workload_key, self.target, self.hardware, self.target_host, self.input_names)
        return memory_of(parts)

    def to_json(self) -> list[Any]:
        """Return the task array of a record, as long as the one that was read."""
        array: list[Any] = [self.workload_key, self.target]
        for field in (self.hardware, self.target_host, self.layout_rewrite_option, self.input_names):
            if field is None:
                break
            array.append(list(field) if isinstance(field, tuple) else field)
        return array


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
    if not is_text(workload_key) or not 0 < len(workload_key) <= LONGEST_WORKLOAD_KEY:
        raise InvalidRecord(
            f"task[0], the workload key, is a string of 1 to {LONGEST_WORKLOAD_KEY} characters"
        )
    if not is_text(target) or not target.strip() or len(target) > LONGEST_TARGET:
        raise InvalidRecord(f"task[1], the target, is a string of 1 to {LONGEST_TARGET} characters")
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


@bounded_function(_KEYS_BYTES)
def canonical_workload_key(key: str) -> str:
    """Return the workload key with its JSON in one spelling, since blanks change on the way.

    A key that is not JSON (a registered function's name) is returned stripped.
    """
    try:
        return json.dumps(json.loads(key), separators=(",", ":"))
    except (ValueError, RecursionError):
        return key.strip()


@bounded_function(_TARGETS_BYTES)
def platform_kind(target: str) -> PlatformKind | None:
    """Return whether a TVM target is a CPU or a GPU, or None where the text does not tell.

    Parameters
    ----------
    target : str
        A target as text (``cuda -keys=cuda,gpu …``) or as JSON (``{"kind": "cuda", …}``).
    """
    kind, keys = _kind_and_keys(target)
    if kind in GPU_TARGETS or "gpu" in keys:
        return "gpu"
    if kind in CPU_TARGETS or "cpu" in keys:
        return "cpu"
    return None


@bounded_function(_TARGETS_BYTES)
def target_names(target: str) -> tuple[str, ...]:
    """Return the device names that a target states (``-model``, ``-mcpu``, ``-arch``), in that order."""
    if target.lstrip().startswith("{"):
        attributes = _json_target(target)
        return tuple(str(attributes[a]) for a in ("model", "mcpu", "arch") if attributes.get(a))
    found = (re.search(rf"(?:^|\s)-{a}=(\S+)", target) for a in ("model", "mcpu", "arch"))
    return tuple(m.group(1) for m in found if m)


def _kind_and_keys(target: str) -> tuple[str, tuple[str, ...]]:
    if target.lstrip().startswith("{"):
        attributes = _json_target(target)
        keys = attributes.get("keys", ())
        return str(attributes.get("kind", "")), tuple(map(str, keys)) if isinstance(keys, list) else ()
    words = target.split()
    keys = next((w[len("-keys=") :].split(",") for w in words if w.startswith("-keys=")), ())
    return (words[0] if words else ""), tuple(keys)


def _json_target(target: str) -> dict[str, Any]:
    try:
        parsed = json.loads(target)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
