"""Parses and formats records; a cache of tasks and primitives makes both fast."""

from __future__ import annotations

import json
from sys import getsizeof

from tlp_client.bounded import BoundedCache, memory_of
from tlp_client.dialects.registry import find
from tlp_client.primitives import Primitive
from tlp_client.records import Record, RecordParser
from tlp_client.tasks import Task

#: Maximum bytes of the cache of tasks and primitives, and of the cache of their texts.
#: The bound is needed since clients may send new ones for ever.
_REMEMBERED_BYTES = 8 << 20


class RecordLines:
    """Parses records of one dialect and formats their lines; caching helps since a search repeats its primitives.

    Any number of threads may share an instance, since no result depends on the contents of the caches.

    Parameters
    ----------
    max_bytes : int
        Maximum bytes of the cache for parsing, and of the cache for formatting.
    dialect : str or None
        Name of the dialect; None for the default one.
    """

    def __init__(self, max_bytes: int = _REMEMBERED_BYTES, dialect: str | None = None) -> None:
        #: Also reads the records of logs.
        self.parser = RecordParser(max_bytes, dialect)
        self._line_of = find(dialect).line_of
        # The key is the object's identity, since hashing a primitive takes longer than all other steps.
        # Each entry keeps its object alive, so that no other object gets its id.
        self._texts: BoundedCache[int, tuple[Task | Primitive, str]] = BoundedCache(max_bytes)

    def parse(self, text: str) -> Record:
        """Return the record of a JSON text, see `RecordParser.parse`."""
        return self.parser.parse(text)

    def line(self, record: Record) -> str:
        """Return the line of a record, as `Record.to_line` does."""
        texts = self._texts
        try:
            task = texts[id(record.task)][1]
            steps = ", ".join([texts[id(p)][1] for p in record.primitives])
        except KeyError:
            task = self._text(record.task)
            steps = ", ".join([self._text(p) for p in record.primitives])
        return self._line_of(record, task, f"[{steps}]")

    def _text(self, part: Task | Primitive) -> str:
        known = self._texts.get(id(part))
        if known is None:
            known = (part, json.dumps(part.to_json(), ensure_ascii=False))
            nbytes = part.nbytes if isinstance(part, Task) else memory_of(part)
            self._texts.add(id(part), known, nbytes + getsizeof(known) + getsizeof(known[1]))
        return known[1]
