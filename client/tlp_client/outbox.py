"""Measured results on their way to the service, sent in the background."""

from __future__ import annotations

import atexit
import logging
import multiprocessing.util
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from tlp_client.connection import Connection
from tlp_client.errors import Refused, ServiceError
from tlp_client.fork import call_in_child
from tlp_client.spool import Letter, Spool

log = logging.getLogger(__name__)

#: ids of acknowledged records that are remembered
_REMEMBERED_IDS = 65_536


class Outbox:
    """Holds measurements until the service has acknowledged them. `put` never waits for the network.

    The ids stay the same however often a record is sent, so none is counted twice. Letters live in memory, and in the file of
    the spool for the case that this process is killed: the next one sends them first, in order, under the worker's name
    that they had.

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
    first_pause_s, longest_pause_s : float
        Pause after a failed try, and the bound of its doubling.
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
        longest_pause_s: float = 30.0,
        exit_wait_s: float = 5.0,
    ) -> None:
        self._connection = connection
        self._worker = worker
        self._spool = spool
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._batch = batch
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._letters: deque[Letter] = deque()
        self._bytes = 0  # of the lines in it
        self._waiting_ids: set[str] = set()
        self._gone_ids: dict[str, None] = {}  # of the last that went, oldest first
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
        self._bytes = 0
        self._waiting_ids.clear()
        if self._spool is not None:
            self._spool.begin_anew()
        self._changed = threading.Condition()
        self._hurry = threading.Event()
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
                if id_ not in self._waiting_ids and id_ not in self._gone_ids
            ]
            if self._spool is not None:
                self._spool.add(new)
            self._take(new)

    def _take(self, letters: Iterable[Letter]) -> None:
        for letter in letters:
            self._letters.append(letter)
            self._waiting_ids.add(letter.id)
            self._bytes += len(letter.line)
        dropped = []
        while len(self._letters) > self._capacity or self._bytes > self._capacity_bytes:
            dropped.append(self._take_out_first())
        if dropped and not self.dropped:
            log.warning("the service has not taken measurements for long; the oldest are dropped")
        self.dropped += len(dropped)
        if self._spool is not None:
            self._spool.remove(dropped)
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="tlp-outbox", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _take_out_first(self) -> str:
        letter = self._letters.popleft()
        self._waiting_ids.discard(letter.id)
        self._bytes -= len(letter.line)
        return letter.id

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
        """Wait until every record is acknowledged or refused, and return whether that happened in time."""
        self._hurry.set()
        with self._changed:
            return self._changed.wait_for(lambda: not self._letters, timeout_s)

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
                self._changed.wait_for(lambda: self._letters or self._closed)
                if self._closed:
                    # Not in `close`: while a batch is on its way, no other process may adopt it.
                    self._close_spool()
                    return
                batch = self._next_batch()
            try:
                self._send(batch)
                pause_s = self._first_pause_s
            except ServiceError as error:
                log.debug("%d measurements wait: %s", len(self._letters), error)
                self._hurry.wait(pause_s)
                self._hurry.clear()
                pause_s = min(2 * pause_s, self._longest_pause_s)
            except Exception:  # the thread must outlive any surprise, or all later records are lost
                log.exception("%d measurements wait", len(self._letters))
                self._hurry.wait(self._longest_pause_s)
                self._hurry.clear()

    def _close_spool(self) -> None:
        if self._spool is not None:
            self._spool.close()

    def _next_batch(self) -> list[Letter]:
        """Return the first letters of one version and worker; they stay in the box until they are acknowledged."""
        first = self._letters[0]
        batch: list[Letter] = []
        for letter in self._letters:
            is_alike = (letter.version, letter.worker) == (first.version, first.worker)
            if not is_alike or len(batch) == self._batch:
                break
            batch.append(letter)
        return batch

    def _send(self, batch: list[Letter]) -> None:
        try:
            answer = self._connection.send(
                [(letter.id, letter.line) for letter in batch],
                worker=batch[0].worker,
                version=batch[0].version,
            )
        except Refused as error:
            if error.status != 413 and error.code not in ("invalid", "malformed"):
                raise  # of the server, or of something else at its address: not of these records
            if len(batch) > 1:
                # One of them is to blame. Halves find it, and let the others through.
                self._send(batch[: len(batch) // 2])
                self._send(batch[len(batch) // 2 :])
                return
            log.warning("the service refuses a measurement: %s", error.message)
            self._remove(batch, rejected=1)
            return
        for reason in list(answer.rejected.values())[:3]:
            log.warning("the service refuses a measurement: %s", reason)
        self._remove(batch, rejected=len(answer.rejected))

    def _remove(self, batch: list[Letter], rejected: int) -> None:
        sent = {letter.id for letter in batch}
        with self._changed:
            # Letters may have been dropped meanwhile, so those sent are found by id at the head.
            gone = []
            while self._letters and self._letters[0].id in sent:
                gone.append(self._take_out_first())
            self._gone_ids.update(dict.fromkeys(gone))
            while len(self._gone_ids) > _REMEMBERED_IDS:
                del self._gone_ids[next(iter(self._gone_ids))]
            if self._spool is not None:
                self._spool.remove(gone)
            self.rejected += rejected
            self.acknowledged += len(batch) - rejected
            self._changed.notify_all()


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
