"""Records from their text and back to it, as fast as looking up what was seen before."""

from __future__ import annotations

import json
from sys import getsizeof

from tlp_client.bounded import BoundedCache, memory_of
from tlp_client.primitives import Primitive
from tlp_client.records import Record, RecordParser
from tlp_client.tasks import Task

#: Memory for the tasks and primitives that are remembered, and as much again for their texts: a client could send
#: new ones for ever.
_REMEMBERED_BYTES = 8 << 20


class RecordLines:
    """Reads records and writes their lines; records of a search have few distinct tasks and primitives.

    Any number of threads may share it, for nothing that is looked up depends on what else was.

    Parameters
    ----------
    max_bytes : int
        Memory for what is remembered of texts that were read, and as much for texts that were written.
    """

    def __init__(self, max_bytes: int = _REMEMBERED_BYTES) -> None:
        #: For logs, whose records are written, too.
        self.parser = RecordParser(max_bytes)
        # By identity, for hashing a primitive takes longer than all else. What it is the text of is kept with it, so that no
        # other object gets its id.
        self._texts: BoundedCache[int, tuple[Task | Primitive, str]] = BoundedCache(max_bytes)

    def parse(self, text: str) -> Record:
        """Return the record of a JSON text, see `RecordParser.parse`."""
        return self.parser.parse(text)

    def line(self, record: Record) -> str:
        """Return what `Record.to_line` does."""
        texts = self._texts
        try:
            task = texts[id(record.task)][1]
            steps = ", ".join([texts[id(p)][1] for p in record.primitives])
        except KeyError:
            task = self._text(record.task)
            steps = ", ".join([self._text(p) for p in record.primitives])
        return record.line_of(task, f"[{steps}]")

    def _text(self, part: Task | Primitive) -> str:
        known = self._texts.get(id(part))
        if known is None:
            known = (part, json.dumps(part.to_json(), ensure_ascii=False))
            nbytes = part.nbytes if isinstance(part, Task) else memory_of(part)
            self._texts.add(id(part), known, nbytes + getsizeof(known) + getsizeof(known[1]))
        return known[1]
