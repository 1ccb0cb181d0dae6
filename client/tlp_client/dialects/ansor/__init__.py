"""The dialect of Ansor, TVM's ``auto_scheduler``."""

from __future__ import annotations

import json
from typing import Any

from tlp_client.dialects.ansor import lines, primitives, records, tasks
from tlp_client.dialects.dialect import Dialect
from tlp_client.dialects.registry import register
from tlp_client.records import Record
from tlp_client.tasks import canonical_workload_key


class Ansor(Dialect):
    """Ansor's transform steps and its tuning records."""

    name = "ansor"
    versions = records.VERSIONS
    kinds = primitives.ARGUMENTS
    max_sizes_of_step = primitives.MAX_SIZES_OF_STEP

    # These are functions instead of methods that call them, to save one call per candidate.
    parse_line = lines.parse_line
    read_arguments = staticmethod(primitives.read_arguments)
    sizes_of = staticmethod(primitives.sizes_of)
    task_json = staticmethod(tasks.task_json)
    line_of = staticmethod(records.line_of)
    split_primitives = staticmethod(lines.split_primitives)
    # Without the name of the dialect, because the splits of existing stores are older than dialects.
    workload = staticmethod(canonical_workload_key)

    def read_record(self, document: object) -> Record:
        """Check a record of any log version."""
        task, steps = records.read_input(document)
        return records.read_result(task, self.read_primitives(steps), document)

    def record_json(self, record: Record) -> dict[str, Any]:
        """Return the JSON object that is the line of a record."""
        return {
            "i": [tasks.task_json(record.task), [[], [p.to_json() for p in record.primitives]]],
            "r": [list(record.costs), record.error_no, record.all_cost, record.timestamp],
            "v": record.version,
        }

    def line(self, record: Record) -> str:
        """Return the line of a record as TVM writes it."""
        task, (_, steps) = self.record_json(record)["i"]
        texts = (json.dumps(part, ensure_ascii=False) for part in (task, steps))
        return records.line_of(record, *texts)


register(Ansor())
