"""Keeps an outbox's letters on disk, so that the next process can send them if this one is killed.

The folder holds files ``ADDRESS-TIME-PID-RANDOM.jsonl``. ADDRESS is a digest of the service, platform and
dialect of the letters. Each line is either a letter or a list of ids that are gone (acknowledged, refused or
dropped). The owner of a file holds a lock on it while the process lives. A file without a lock is adopted by
the next process that sends to the same address. Unreadable lines go to the quarantine
(`tlp_client.quarantine`).

Disk errors are logged and never raised: the search goes on, and the letters are in memory as well.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tlp_client.errors import is_text
from tlp_client.locked_file import IS_AVAILABLE, LockedFile
from tlp_client.quarantine import Quarantine

log = logging.getLogger(__name__)

#: A file is compacted when it has more than twice the bytes of its live letters, plus this number of bytes.
_SLACK_BYTES = 2**20

#: Maximum size of a file that is adopted, as a multiple of an outbox's capacity in bytes.
#: No outbox writes a larger one: it compacts at twice the size of its live letters, and JSON escaping less
#: than doubles their lines.
_MAX_FILE_RATIO = 4

#: Age in seconds from which an unlocked temporary file counts as a leftover of a killed process.
_LEFTOVER_AGE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Letter:
    """A record to be sent: its id, its line, the version that scored it, and the worker that measured it."""

    id: str
    line: str
    version: str | None
    worker: str


def find_folder(named: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder for spool files, or None to keep letters in memory only.

    Parameters
    ----------
    named : str, path or None
        Folder that the caller chose; "" keeps letters in memory only. None uses the environment variable
        ``TLP_OUTBOX_DIR``, with the same meaning of "", or ``tlp/outbox`` in the user's cache folder if it is
        not set.
    """
    if not IS_AVAILABLE:
        return None
    if named is None:
        named = os.environ.get("TLP_OUTBOX_DIR")
    if named is None:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        if not os.path.isabs(cache):  # the user has no home; XDG requires ignoring relative paths, too
            log.warning("unsent measurements are kept in memory only: there is no cache folder")
            return None
        named = os.path.join(cache, "tlp", "outbox")
    if not os.fspath(named):
        return None
    return Path(os.path.expanduser(named)).absolute()


class Spool:
    """The letters of one outbox on disk. Not thread-safe: the outbox guards it with its lock.

    Parameters
    ----------
    folder : Path
        Folder that all workers of a user share. It is created with the first letter.
    url : str
        URL of the service.
    platform : str or None
        Platform of the letters. It is part of the address because requests state it and ids depend on it.
    dialect : str or None
        Dialect of the letters; None for the default one. It is part of the address for the same reasons.
    """

    def __init__(self, folder: Path, url: str, platform: str | None, dialect: str | None = None) -> None:
        self.folder = folder
        address = "\n".join([url.rstrip("/"), str(platform), *([] if dialect is None else [dialect])])
        self._address = hashlib.sha256(address.encode()).hexdigest()[:16]  # a URL may hold a password
        self.quarantine = Quarantine(folder, self._address, dialect)
        self._file: LockedFile | None = None
        self._sizes: dict[str, int] = {}  # bytes of the line of each live letter, by id
        self._needed_bytes = 0
        self._is_closed = False
        self._has_warned = False

    @property
    def held(self) -> int:
        """Number of live letters on disk."""
        return len(self._sizes)

    def adopt(self, max_bytes: int) -> list[Letter]:
        """Take over and return the letters that dead processes left for this address, oldest file first.

        Parameters
        ----------
        max_bytes : int
            Capacity of the outbox. After half of it is used, further files are left to the next process, so
            that no letter has to be dropped.
        """
        taken: list[LockedFile] = []
        letters: dict[str, Letter] = {}
        damaged: list[bytes] = []
        try:
            for path in self._abandoned():
                if sum(file.size for file in taken) > max_bytes // 2:
                    break
                file = LockedFile.take(path)
                if file is not None and file.size > _MAX_FILE_RATIO * max_bytes:
                    log.warning(
                        "%s: expected at most %d bytes of unsent measurements, got %d; it is ignored, remove it",
                        path,
                        _MAX_FILE_RATIO * max_bytes,
                        file.size,
                    )
                    file.close()
                elif file is not None:
                    taken.append(file)
                    damaged += _read_letters(file, letters)
            self._keep_damaged(damaged)
            if letters:
                self._write_anew(letters.values())
            # If the process is killed before this loop, old and new files both hold the letters. The next
            # process that adopts them deduplicates by id.
            for file in taken:
                file.remove()
        except (OSError, ValueError) as error:
            self._warn(error)
            letters.clear()  # the files stay, for a process that can take them over
        finally:
            for file in taken:
                file.close()
        return list(letters.values())

    def _keep_damaged(self, lines: Collection[bytes]) -> None:
        """Put unreadable lines into quarantine: a later release may have written them."""
        if not lines:
            return
        # A last line without a newline was cut off when its process was killed; its measurement is
        # incomplete.
        whole = [line.decode(errors="replace") for line in lines if line.endswith(b"\n") and line.strip()]
        self.quarantine.add({"text": text, "reason": "this client cannot read it"} for text in whole)
        kept = f"; {len(whole)} of them are kept in {self.quarantine.path}" if whole else ""
        log.warning("%d damaged lines of waiting measurements are skipped%s", len(lines), kept)

    def add(self, letters: Collection[Letter]) -> None:
        """Write letters to the file. If the disk is full, they are in memory only."""
        if self._is_closed or not letters:
            return
        try:
            if self._file is None:
                self._write_anew(letters)
            else:
                lines = {letter.id: _line_of(letter) for letter in letters}
                self._file.append(b"".join(lines.values()))
                self._need(lines)
        except (OSError, ValueError) as error:
            self._warn(error)

    def remove(self, ids: Iterable[str]) -> None:
        """Record that letters are gone, and delete the file with the last one."""
        gone = [id_ for id_ in ids if id_ in self._sizes]
        if self._file is None or not gone:
            return
        for id_ in gone:
            self._needed_bytes -= self._sizes.pop(id_)
        if not self._sizes:
            self._file.remove()
            self._file = None
            return
        try:
            self._file.append(json.dumps({"gone": gone}).encode() + b"\n")
            if self._file.size > 2 * self._needed_bytes + _SLACK_BYTES:
                self._compact()
        except (OSError, ValueError) as error:
            self._warn(error)

    def close(self) -> None:
        """Close the file and leave its live letters to the next process."""
        self._is_closed = True
        self.begin_anew()

    def begin_anew(self) -> None:
        """Close the file without unlocking it; in a forked child, the parent keeps the lock."""
        file, self._file = self._file, None
        self._sizes.clear()
        self._needed_bytes = 0
        if file is not None:
            file.close()

    def _abandoned(self) -> list[Path]:
        """Return all files of this address, oldest first and including those in use; delete leftovers."""
        try:
            names = sorted(name for name in os.listdir(self.folder) if name.startswith(f"{self._address}-"))
        except FileNotFoundError:
            return []
        for name in names:
            path = self.folder / name
            # A file has no lock for an instant while it is created, so only its age identifies a leftover.
            file = LockedFile.take(path) if name.endswith(".tmp") and _is_old(path) else None
            if file is not None:
                file.remove()
        return [self.folder / name for name in names if name.endswith(".jsonl")]

    def _compact(self) -> None:
        letters: dict[str, Letter] = {}
        assert self._file is not None
        _read_letters(self._file, letters)
        self._write_anew([letter for letter in letters.values() if letter.id in self._sizes])

    def _write_anew(self, letters: Iterable[Letter]) -> None:
        """Write these letters to a new file that replaces the file of this process, if it has one."""
        if self._file is None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = f"{self._address}-{time.time_ns():020}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
            path = self.folder / name
        else:
            path = self._file.path
        lines = {letter.id: _line_of(letter) for letter in letters}
        before, self._file = self._file, LockedFile.create(path, b"".join(lines.values()))
        if before is not None:
            before.close()
        self._sizes.clear()
        self._needed_bytes = 0
        self._need(lines)

    def _need(self, lines: dict[str, bytes]) -> None:
        for id_, line in lines.items():
            self._sizes[id_] = len(line)
            self._needed_bytes += len(line)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            log.warning(
                "the outbox's file fails, so measurements are lost if this process is killed: %s", error
            )
        self._has_warned = True


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _LEFTOVER_AGE_S
    except FileNotFoundError:  # renamed meanwhile
        return False


def _read_letters(file: LockedFile, letters: dict[str, Letter]) -> list[bytes]:
    """Add the live letters of a file, in order; return its damaged lines, including a cut last line."""
    damaged = []
    for line in file.lines():
        try:
            fields = json.loads(line)
            if "gone" in fields:
                for id_ in fields["gone"]:
                    letters.pop(id_, None)
            else:
                letter = _read_letter(fields)
                letters.setdefault(letter.id, letter)
        except (ValueError, TypeError, KeyError, RecursionError):
            damaged.append(line)
    return damaged


def _line_of(letter: Letter) -> bytes:
    return json.dumps(asdict(letter)).encode() + b"\n"


def _read_letter(fields: dict[str, str]) -> Letter:
    # Unknown fields of a later release are ignored: its measurements are sent without them instead of being
    # lost.
    letter = Letter(fields["id"], fields["line"], fields["version"], fields["worker"])
    texts = [letter.id, letter.line, letter.worker, *([] if letter.version is None else [letter.version])]
    if not all(is_text(text) for text in texts):
        raise ValueError("a letter is made of text")
    return letter
