"""The task of a candidate: its workload and target."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from tlp_client.bounded import bounded_function, memory_of
from tlp_client.dialects.registry import DEFAULT, find

PlatformKind = Literal["cpu", "gpu"]

CPU_TARGETS = frozenset({"llvm", "c", "stackvm", "hybrid", "ext_dev"})
GPU_TARGETS = frozenset({"cuda", "nvptx", "rocm", "opencl", "metal", "vulkan", "webgpu"})

#: Maximum characters of a workload key and of a target. Those in public logs have at most a few hundred.
MAX_WORKLOAD_KEY, MAX_TARGET = 65_536, 4_096

#: Bytes of cached canonical workload keys, and of the cached results of each function of a target.
_KEYS_BYTES, _TARGETS_BYTES = 8 << 20, 1 << 20


@dataclass(frozen=True, slots=True)
class Task:
    """Workload and target of a candidate.

    A field is None if the dialect, or an old version of its record form, does not have it.

    Parameters
    ----------
    workload_key : str
        Workload key as the tuner writes it; Ansor writes ``["hash"]``, ``["hash", [shape], ...]`` or
        ``["function", arg, ...]``.
    target : str
        TVM's target text, e.g. ``llvm -keys=cpu -mcpu=core-avx2``.
    hardware : tuple of int or None
        The eight numbers of ``HardwareParamsNode`` of TVM (Ansor, log version v0.3 and later).
    target_host : str or None
        Target of the host code (v0.5 and later; empty where it is the target itself).
    layout_rewrite_option : int or None
        ``LayoutRewriteOption`` of TVM (v0.5 and later).
    input_names : tuple of str or None
        Names of the special inputs (v0.6).
    dialect : str
        Name of the dialect in which the candidates are written. Tasks of two dialects are never the same.
    """

    workload_key: str
    target: str
    hardware: tuple[int, ...] | None = None
    target_host: str | None = None
    layout_rewrite_option: int | None = None
    input_names: tuple[str, ...] | None = None
    dialect: str = DEFAULT

    @property
    def workload(self) -> str:
        """The workload in canonical form, for grouping records. No two dialects share a workload."""
        return find(self.dialect).workload(self.workload_key)

    @property
    def nbytes(self) -> int:
        """Bytes of the task and all its fields."""
        parts = (self.workload_key, self.target, self.hardware, self.target_host, self.input_names)
        return memory_of(parts)

    def to_json(self) -> Any:
        """Return the JSON value that represents the task in a record of its dialect."""
        return find(self.dialect).task_json(self)


def workload_of(key: str, dialect: str | None = None) -> str:
    """Return `Task.workload` of a task with this key and dialect; None for the default dialect."""
    return find(dialect).workload(key)


@bounded_function(_KEYS_BYTES)
def canonical_workload_key(key: str) -> str:
    """Return the workload key with its JSON in canonical form, since tools differ in the blanks they write.

    A key that is not JSON (a registered function's name) is returned stripped.
    """
    try:
        return json.dumps(json.loads(key), separators=(",", ":"))
    except (ValueError, RecursionError):
        return key.strip()


@bounded_function(_TARGETS_BYTES)
def platform_kind(target: str) -> PlatformKind | None:
    """Return whether a TVM target is a CPU or a GPU, or None if the text does not show it.

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
