"""Notes the refused lines of imported logs in a record store: their places and the reasons."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from tlp_client.logs import RefusedLine
from tlp_service.records.parquet_files import replace_file

log = logging.getLogger(__name__)

QUARANTINE = "quarantine.jsonl"


def note_refused(folder: Path, refused: Sequence[RefusedLine], sources: Collection[str]) -> None:
    """Note the refused lines of logs, and replace earlier notes on the same logs.

    Parameters
    ----------
    folder : Path
        Folder of the store.
    refused : sequence of RefusedLine
        The lines.
    sources : collection of str
        All logs that were read. A line that was incomplete at an earlier import may be complete now.
    """
    path = folder / QUARANTINE
    before = path.read_bytes().splitlines() if path.exists() else []
    noted = [note for note in _notes(before, path) if note["source"] not in sources]
    noted += [{"source": line.source, "line": line.number, "reason": line.reason} for line in refused]
    if noted or before:
        entries = dict.fromkeys(map(json.dumps, noted))
        replace_file(path, "".join(f"{entry}\n" for entry in entries).encode())


def _notes(lines: Iterable[bytes], path: Path) -> list[dict[str, object]]:
    """Return the notes of earlier imports without damaged ones, which cost no records."""
    notes, damaged = [], 0
    for line in lines:
        try:
            note = json.loads(line)
            note["source"]
        except (ValueError, LookupError, TypeError, RecursionError):
            damaged += 1
        else:
            notes.append(note)
    if damaged:
        log.warning("%s: %d damaged lines are dropped", path, damaged)
    return notes
