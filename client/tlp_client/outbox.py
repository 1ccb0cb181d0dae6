"""Sends measured results to the service in the background."""

from __future__ import annotations

import atexit
import json
import logging
import multiprocessing.util
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tlp_client.connection import Connection
from tlp_client.errors import BadAnswer, DeadlineExceeded, Refused, ServiceError
from tlp_client.fork import call_in_child
from tlp_client.letter_queue import LetterQueue
from tlp_client.spool import Letter, Spool
from tlp_client.wire.fields import is_name

log = logging.getLogger(__name__)

#: Maximum number of ids of acknowledged records that are kept to recognize duplicates.
_MAX_REMEMBERED_IDS = 65_536

#: Consecutive requests without an answer after which the letters of the request are set back.
_MAX_UNANSWERED = 3

#: Maximum number of refused records that are logged per answer.
_MAX_LOGGED = 3

#: Maximum characters of a refused record that are logged if it cannot be written to the quarantine.
_MAX_LOGGED_CHARACTERS = 2000


class Outbox:
    """Holds measurements until the service has acknowledged them. `put` never waits for the network.

    A record keeps its id however often it is sent, so the service can deduplicate. A letter is a record that
    is to be sent. Letters are kept in memory and in the spool's file. If this process is killed, the next one
    sends them first, in order and under their original worker's name.

    A letter is removed when the service has accepted it, knew it already, or rejected this very record. A
    rejected letter goes to the spool's quarantine. A request that is refused as a whole says nothing about
    its letters: another server, or the same one after an upgrade, may accept them. They are kept, and sent
    after all others. The same happens if a request repeatedly gets no answer, because one of its letters may
    crash the server. A letter that gets no answer alone, while others do, is retried less and less often.

    Parameters
    ----------
    connection : Connection
        Connection over which letters are sent.
    worker : str
        Name of the worker that measured.
    spool : Spool or None
        Keeps letters on disk, including those of killed processes. With None, a killed process loses its
        unacknowledged letters.
    capacity, capacity_bytes : int
        Maximum number of records, and maximum characters of their lines. Beyond either limit the oldest
        records are dropped and counted, and a warning is logged.
    batch : int
        Maximum number of records per request.
    first_pause_s, max_pause_s : float
        Seconds of the pause after a failed request, and the maximum to which pauses double.
    first_aside_s, max_aside_s : float
        Seconds for which a letter is set aside if it gets no answer alone, and the maximum to which they
        double.
    exit_wait_s : float
        Maximum seconds that the program waits at exit for the last letters to be sent.
    """

    def __init__(
        self,
        connection: Connection,
        worker: str,
        *,
        spool: Spool | None = None,
        capacity: int = 100_000,
        capacity_bytes: int = 256 * 2**20,
        batch: int = 512,
        first_pause_s: float = 0.5,
        max_pause_s: float = 30.0,
        first_aside_s: float = 60.0,
        max_aside_s: float = 3600.0,
        exit_wait_s: float = 5.0,
    ) -> None:
        self._connection = connection
        self._worker = worker
        self._spool = spool
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._first_pause_s = first_pause_s
        self._max_pause_s = max_pause_s
        self._first_aside_s = first_aside_s
        self._max_aside_s = max_aside_s
        self._letters = LetterQueue(batch)
        self._unanswered = 0  # consecutive requests without an answer
        self._aside_s = first_aside_s
        self._recall_at = 0.0
        self._flushes = 0  # calls of `flush` in progress
        self._warned: set[object] = set()  # kinds of refusals logged since all letters last got through
        # Ids of the last letters that were sent. An OrderedDict, because a plain dict is slow to find its
        # oldest key.
        self._gone_ids: OrderedDict[str, None] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False
        self._hurry = threading.Event()  # cuts a pause short
        self._thread: threading.Thread | None = None
        self.acknowledged = 0
        self.rejected = 0
        self.dropped = 0
        _flush_at_exit(self, exit_wait_s)
        call_in_child(self._begin_anew)
        self._adopt()

    def _begin_anew(self) -> None:
        """Reset the outbox in a forked child: the letters and the sending thread belong to the parent."""
        self._letters.clear()
        if self._spool is not None:
            self._spool.begin_anew()
        self._changed = threading.Condition()
        self._hurry = threading.Event()
        self._flushes = 0
        self._thread = None

    def _adopt(self) -> None:
        """Take over the letters that killed processes left."""
        adopted = self._spool.adopt(self._capacity_bytes) if self._spool is not None else []
        if adopted:
            log.info("%d measurements of workers that ended are sent first", len(adopted))
            with self._changed:
                self._take(adopted)

    def put(self, lines: Sequence[tuple[str, str]], version: str | None) -> None:
        """Queue records for sending, without waiting for the network.

        A record is skipped if its id is in the queue or was sent recently.

        Parameters
        ----------
        lines : sequence of (str, str)
            Id and record line of each record.
        version : str or None
            Model version that scored the records.
        """
        letters = {id_: Letter(id_, line, version, self._worker) for id_, line in lines}
        with self._changed:
            new = [
                letter
                for id_, letter in letters.items()
                if id_ not in self._letters and id_ not in self._gone_ids
            ]
            if self._spool is not None:
                self._spool.add(new)
            self._take(new)

    def _take(self, letters: Iterable[Letter]) -> None:
        for letter in letters:
            self._letters.add(letter)
        dropped = []
        while len(self._letters) > self._capacity or self._letters.characters > self._capacity_bytes:
            dropped.append(self._letters.drop_oldest())
        if dropped and not self.dropped:
            log.warning("the service has not taken measurements for long; the oldest are dropped")
        self.dropped += len(dropped)
        if self._spool is not None:
            self._spool.remove(dropped)
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="tlp-outbox", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Records that are not acknowledged yet."""
        return len(self._letters)

    @property
    def folder(self) -> Path | None:
        """Folder that holds all unsent records; None if at least one is in memory only."""
        is_kept = self._spool is not None and self._spool.held == len(self._letters)
        return self._spool.folder if self._spool is not None and is_kept else None

    def flush(self, timeout_s: float) -> bool:
        """Wait until every record is acknowledged or rejected, and return whether that happened in time."""
        self._hurry.set()
        with self._changed:
            self._recall_at = 0.0
            self._flushes += 1  # until it ends, no letter is set aside
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: not self._letters, timeout_s)
            finally:
                self._flushes -= 1

    def close(self) -> None:
        """Stop sending; call `flush` first.

        The next outbox with the same spool sends the remaining letters. Without a spool they are lost.
        """
        with self._changed:
            self._closed = True
            if self._thread is None:
                self._close_spool()
            self._changed.notify_all()
        self._hurry.set()

    def _run(self) -> None:
        pause_s = self._first_pause_s
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, self._until_recall())
                if self._closed:
                    # Closed here and not in `close`: no other process may adopt a batch that is being sent.
                    self._close_spool()
                    return
                if self._until_recall() == 0:
                    self._letters.recall()
                    self._unanswered = 0
                batch = self._letters.next_batch()
            if not batch:
                continue
            try:
                self._send(batch)
                pause_s = self._first_pause_s
            except ServiceError as error:
                log.debug("%d measurements wait: %s", len(self._letters), error)
                self._refuse(batch, error)
                if isinstance(error, Refused) and error.status == 413 and len(batch) > 1:
                    continue  # half of the batch may be small enough
                self._hurry.wait(pause_s)
                self._hurry.clear()
                pause_s = min(2 * pause_s, self._max_pause_s)
            except Exception as error:  # the thread must outlive any surprise, or all later records are lost
                log.exception("%d measurements wait", len(self._letters))
                self._pass_over(batch, error)
                self._hurry.wait(self._max_pause_s)
                self._hurry.clear()

    def _has_work(self) -> bool:
        return self._letters.has_next or self._closed or self._until_recall() == 0

    def _until_recall(self) -> float | None:
        """Return the seconds until letters that were set aside are recalled; None if there are none."""
        if not self._letters.has_aside:
            return None
        return max(0.0, self._recall_at - time.monotonic())

    def _close_spool(self) -> None:
        if self._spool is not None:
            self._spool.close()

    def _send(self, batch: list[Letter]) -> None:
        answer = self._connection.send(
            [(letter.id, letter.line) for letter in batch],
            worker=batch[0].worker,
            version=batch[0].version,
        )
        self._keep_rejected({batch[position]: reason for position, reason in answer.rejected.items()})
        self._remove(batch, rejected=len(answer.rejected))
        self._unanswered = 0
        if not self._letters.has_set_back:
            self._aside_s = self._first_aside_s
        if self._warned and not self._letters.has_set_back:
            log.info("the service accepts measurements again")
            self._warned.clear()

    def _refuse(self, batch: list[Letter], error: ServiceError) -> None:
        """Set back the letters of a request that was answered with an error.

        A letter that can never be delivered goes to the quarantine instead.
        """
        is_answered = isinstance(error, (BadAnswer, DeadlineExceeded, Refused))
        if not is_answered or (isinstance(error, Refused) and error.status == 503):
            self._pass_over(batch, error)
            return
        self._unanswered = 0
        reason = _undeliverable(batch[0], error) if len(batch) == 1 else None
        if reason is not None:
            self._keep_rejected({batch[0]: reason})
            self._remove(batch, rejected=1)
            return
        with self._changed:
            self._letters.set_back(batch)
        self._warn(error)

    def _pass_over(self, batch: list[Letter], error: Exception) -> None:
        """Set back the letters of a request that repeatedly got no answer: one of them may be the cause."""
        is_first = self._unanswered == 0  # the previous request got an answer
        self._unanswered += 1
        with self._changed:
            if not self._letters.is_set_back(batch[0]):
                if self._unanswered % _MAX_UNANSWERED == 0:
                    self._letters.set_back(batch)
                return
            self._letters.set_back(batch)
            if len(batch) > 1 or not is_first or self._flushes:
                return
            self._letters.set_aside(batch[0])
            self._recall_at = time.monotonic() + self._aside_s
            pause_s, self._aside_s = self._aside_s, min(2 * self._aside_s, self._max_aside_s)
        log.warning(
            "a measurement alone in its request gets no answer, others do; it is tried again in %.0f s: %s",
            pause_s,
            error,
        )

    def _warn(self, error: ServiceError) -> None:
        """Log once per kind of refusal why letters are not accepted, and where they are kept."""
        kind = (error.status, error.code) if isinstance(error, Refused) else type(error)
        is_busy = isinstance(error, DeadlineExceeded) or (isinstance(error, Refused) and error.status == 429)
        if kind in self._warned or is_busy:
            return
        self._warned.add(kind)
        remedy = f"; {error.remedy}" if isinstance(error, Refused) else ""
        place = f"in {self.folder}" if self.folder else "in memory"
        log.warning("the service does not accept measurements, which wait %s: %s%s", place, error, remedy)

    def _keep_rejected(self, rejected: Mapping[Letter, str]) -> None:
        """Put letters into quarantine, or log them if there is none."""
        for reason in list(rejected.values())[:_MAX_LOGGED]:
            log.warning("the service refuses a measurement: %s", reason)
        entries = [{**asdict(letter), "reason": reason} for letter, reason in rejected.items()]
        if not entries:
            return
        kept: object = "there is no outbox folder"
        if self._spool is not None:
            try:
                self._spool.quarantine.add(entries)
            except OSError as error:
                kept = error
            else:
                log.info("%d refused measurements are kept in %s", len(entries), self._spool.quarantine.path)
                return
        for entry in entries:
            text = json.dumps(entry)[:_MAX_LOGGED_CHARACTERS]
            log.warning("a refused measurement is not kept (%s): %s", kept, text)

    def _remove(self, batch: list[Letter], rejected: int) -> None:
        with self._changed:
            gone = self._letters.remove(batch)  # some may have been dropped meanwhile
            self._gone_ids.update(dict.fromkeys(gone))
            while len(self._gone_ids) > _MAX_REMEMBERED_IDS:
                self._gone_ids.popitem(last=False)
            if self._spool is not None:
                self._spool.remove(gone)
            self.rejected += rejected
            self.acknowledged += len(batch) - rejected
            self._changed.notify_all()


def _undeliverable(letter: Letter, error: ServiceError) -> str | None:
    """Return why the only letter of a refused request can never be delivered; None if it may still be."""
    if not isinstance(error, Refused):
        return None
    if (error.status, error.code) == (413, "too_large"):
        return f"too large for the service: {error.message}"
    if error.status not in (400, 422):
        return None
    # A line that was damaged on disk invalidates the whole request, so no server can reject just this record.
    try:
        is_object = isinstance(json.loads(letter.line), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        return "its line is not a JSON object"
    if not is_name(letter.worker) or not (letter.version is None or is_name(letter.version)):
        return "its worker or version is not a name"
    return None


def _flush_at_exit(outbox: Outbox, wait_s: float) -> None:
    reference = weakref.ref(outbox)  # the exit handler must not keep the outbox alive
    is_done = threading.Event()

    def flush() -> None:
        box = reference()
        if is_done.is_set() or box is None or box._closed:
            return
        is_done.set()
        if not box.flush(wait_s):
            kept = f"they wait in {box.folder}" if box.folder else "upload the tuning log to keep them"
            log.warning("%d measurements were not sent; %s", box.waiting, kept)

    atexit.register(flush)
    # Children of multiprocessing end without atexit.
    multiprocessing.util.Finalize(None, flush, exitpriority=10)
