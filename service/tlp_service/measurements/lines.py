"""Records from their text and back to it, as fast as looking up what was seen before."""

from __future__ import annotations

import json

from tlp_client.primitives import Primitive
from tlp_client.records import Record, RecordParser
from tlp_client.tasks import Task

#: Characters of records after which all is forgotten: a client could send new tasks for ever.
_FORGET = 64 << 20


class RecordLines:
    """Reads records and writes their lines; records of a search have few distinct tasks and primitives.

    Any number of threads may share it, for nothing that is looked up depends on what else was.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._parser = RecordParser()
        # By identity, for hashing a primitive takes longer than all else. What it is the text of is kept with it, so that no
        # other object gets its id.
        self._texts: dict[int, tuple[Task | Primitive, str]] = {}
        self._seen = 0

    def parse(self, text: str) -> Record:
        """Return the record of a JSON text, see `RecordParser.parse`."""
        self._seen += len(text)
        if self._seen > _FORGET:
            self._forget()
        return self._parser.parse(text)

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
            known = self._texts[id(part)] = (part, json.dumps(part.to_json(), ensure_ascii=False))
            self._seen += len(known[1])
        return known[1]
