"""Keeps letters that cannot be delivered in a file, with the reason.

The file is ``quarantine-ADDRESS.jsonl`` in the folder of the outbox. No outbox sends its contents. Each line
is a letter with ``reason`` and ``time``; its ``line`` is a line of a tuning log. To send the records again
after fixing the cause::

    jq -r .line quarantine-*.jsonl | curl -H 'Content-Type: application/x-ndjson' --data-binary @- \
        'http://cost-model:8000/v1/measurements?worker=host-7&platform=epyc-9004-2c'

If the dialect is not the default one, each line has the field ``dialect``, and the query must state it as
well.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path

from tlp_client.locked_file import LockedFile

#: Size in bytes at which the file is renamed to ``….old.jsonl``, replacing the previous one.
#: At most twice as much is kept.
_MAX_BYTES = 32 << 20

#: Maximum number of attempts to lock the file, which other processes use as well, and seconds between two.
_MAX_TRIES, _PAUSE_S = 100, 0.01


class Quarantine:
    """The quarantine file. Several processes may append to it.

    Parameters
    ----------
    folder : Path
        Folder of the outbox.
    address : str
        Digest of the service, platform and dialect that the letters are for.
    dialect : str or None
        Dialect of the letters; None for the default one, which is not stated.
    """

    def __init__(self, folder: Path, address: str, dialect: str | None = None) -> None:
        # The name must not begin with the address: outboxes of all releases adopt the files that do.
        self.path = folder / f"quarantine-{address}.jsonl"
        self._dialect = dialect

    def add(self, entries: Iterable[Mapping[str, object]]) -> None:
        """Append entries with the current time.

        Raises
        ------
        OSError
            If an entry cannot be written; earlier ones may have been.
        """
        stated = {} if self._dialect is None else {"dialect": self._dialect}
        time_ = datetime.now(timezone.utc).isoformat(timespec="seconds")
        for entry in entries:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._append(json.dumps({**entry, **stated, "time": time_}).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        for _ in range(_MAX_TRIES):
            file = LockedFile.take_or_make(self.path)
            if file is None:
                time.sleep(_PAUSE_S)
                continue
            try:
                if file.size == 0 or file.size + len(line) <= _MAX_BYTES:
                    file.append(line)
                    return
                os.replace(self.path, self.path.with_suffix(".old.jsonl"))
            finally:
                file.close()
        raise OSError(f"{self.path}: another process holds its lock")
