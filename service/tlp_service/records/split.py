"""The split of records into train, validation and test parts.

A hash with the seed of the store decides the part of a group, so adding records does not move others.
A group has all records of one workload, on any platform. With ``by="source"``, it also has all workloads of one log
(a log usually comes from one network).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Literal

from tlp_service.errors import BadRecords

Part = Literal["train", "validation", "test"]

#: Percentage of the groups in each part.
VALIDATION, TEST = 10, 10


def part_of(group: str, seed: int) -> Part:
    """Return the part of a group of records: 80 % are train, 10 % validation, 10 % test."""
    digest = hashlib.sha256(f"{seed}\0{group}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") % 100
    return "test" if place < TEST else "validation" if place < TEST + VALIDATION else "train"


def parts_by_workload(workloads: Iterable[str], seed: int) -> dict[str, Part]:
    """Return the part of each workload."""
    return {workload: part_of(workload, seed) for workload in workloads}


def parts_by_source(sources: Iterable[tuple[str, str]], seed: int) -> dict[str, Part]:
    """Return the part of each workload such that no log is in two parts.

    Parameters
    ----------
    sources : iterable of (str, str)
        Workload and log of records. Logs that share a workload are held together.
    """
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    workloads = set()
    for workload, source in sources:
        workloads.add(workload)
        one, other = sorted((find(f"w {workload}"), find(f"s {source}")))
        leader[other] = one
    return {workload: part_of(find(f"w {workload}"), seed) for workload in workloads}


def check_no_leak(parts: Mapping[str, Iterable[str]]) -> None:
    """Raise where a workload is in two parts.

    Parameters
    ----------
    parts : mapping of str to iterable of str
        Part -> workloads of its tasks.

    Raises
    ------
    BadRecords
        If the same workload is trained on and held back.
    """
    seen: dict[str, str] = {}
    for part, workloads in parts.items():
        for workload in set(workloads):
            other = seen.setdefault(workload, part)
            if other != part:
                raise BadRecords(f"the split leaks: workload {workload:.80} is in {other} and in {part}")
