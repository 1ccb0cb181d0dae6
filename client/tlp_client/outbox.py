"""Measured results on their way to the service, sent in the background."""

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

#: Maximum number of ids of acknowledged records that are remembered.
_MAX_REMEMBERED_IDS = 65_536

#: Requests in a row with the same first letter that get no answer, after which its letters are sent after all others.
_MAX_UNANSWERED = 3

#: Refused records of one answer that are logged.
_MAX_LOGGED = 3

#: Characters of a refused record that are logged if no file keeps it.
_MAX_LOGGED_CHARACTERS = 2000


class Outbox:
    """Holds measurements until the service has acknowledged them. `put` never waits for the network.

    The ids stay the same however often a record is sent, so none is counted twice. Letters live in memory, and in the file of
    the spool for the case that this process is killed: the next one sends them first, in order, under the worker's name
    that they had.

    A letter goes when the service has accounted for it: accepted, known already, or rejected by itself. A rejected one goes to
    the spool's quarantine. A request that is refused as a whole is no verdict on its letters, whatever the answer says: another
    server, or the same one after an upgrade, may take them. They wait, and are sent after all others. So are those whose request
    repeatedly gets no answer, since a letter may be what ends the server. One that gets none by itself, though others do, is tried
    ever less often.

    Parameters
    ----------
    connection : Connection
        How to send.
    worker : str
        Who measured.
    spool : Spool or None
        Keeps letters on disk, those of killed processes too. None: a process that is killed loses what was not acknowledged.
    capacity, capacity_bytes : int
        Most records held, and most bytes of their lines; beyond either the oldest are dropped, counted and reported.
    batch : int
        Records a request.
    first_pause_s, max_pause_s : float
        Pause after a failed try, and the bound of its doubling.
    first_aside_s, max_aside_s : float
        Time for which a letter is left out that gets no answer by itself, and the bound of its doubling.
    exit_wait_s : float
        Seconds that the end of the program waits for the last letters.
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
        self._unanswered = 0  # requests in a row
        self._aside_s = first_aside_s
        self._recall_at = 0.0
        self._flushes = 0  # that wait
        self._warned: set[object] = set()  # kinds of refusals, until all that was refused got through
        # Of the last letters that were sent. A plain dict is slow to find its oldest key.
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
        """Forget, in a child of fork, what the parent sends, and the thread that only the parent has."""
        self._letters.clear()
        if self._spool is not None:
            self._spool.begin_anew()
        self._changed = threading.Condition()
        self._hurry = threading.Event()
        self._flushes = 0
        self._thread = None

    def _adopt(self) -> None:
        """Begin with what killed processes left."""
        adopted = self._spool.adopt(self._capacity_bytes) if self._spool is not None else []
        if adopted:
            log.info("%d measurements of workers that ended are sent first", len(adopted))
            with self._changed:
                self._take(adopted)

    def put(self, lines: Sequence[tuple[str, str]], version: str | None) -> None:
        """Take over records; one whose id waits or went lately is left out. Waits for the disk at most.

        Parameters
        ----------
        lines : sequence of (str, str)
            Id and record line of each.
        version : str or None
            Model version that scored them.
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
        """Where the records wait on disk; None if one of them waits in memory only."""
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
        """Stop sending. What waits is left to the next outbox with such a spool, and lost without one; `flush` first."""
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
                    # Not in `close`: while a batch is on its way, no other process may adopt it.
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
        """Return the seconds until letters are recalled that were set aside; None if there are none."""
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
        """Set letters back whose request got an answer that does not account for them."""
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
        """Set letters back whose request repeatedly got no answer: what holds up all may be one of them."""
        is_first = self._unanswered == 0  # the request before got an answer
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
        """Log once per kind of refusal that letters wait, and why."""
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
    # A line that was damaged on disk invalidates the whole request, so no server can reject the record by its position.
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
    reference = weakref.ref(outbox)  # registering must not keep it alive
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
