"""Measured results on their way to the service, sent in the background."""

from __future__ import annotations

import atexit
import logging
import multiprocessing.util
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tlp_client.connection import Connection
from tlp_client.errors import Refused, ServiceError
from tlp_client.fork import call_in_child

log = logging.getLogger(__name__)

#: ids of acknowledged records that are remembered
_REMEMBERED_IDS = 65_536


@dataclass(frozen=True, slots=True)
class _Letter:
    id: str
    line: str
    version: str | None


class Outbox:
    """Holds measurements until the service has acknowledged them. `put` never waits for the network.

    The ids stay the same however often a record is sent, so none is counted twice. Letters live in memory: a worker that is
    killed loses what the service did not acknowledge yet.

    Parameters
    ----------
    connection : Connection
        How to send.
    worker : str
        Who measured.
    capacity : int
        Most records held; beyond it the oldest are dropped, counted and reported.
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
        capacity: int = 100_000,
        batch: int = 512,
        first_pause_s: float = 0.5,
        longest_pause_s: float = 30.0,
        exit_wait_s: float = 5.0,
    ) -> None:
        self._connection = connection
        self._worker = worker
        self._capacity = capacity
        self._batch = batch
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._letters: deque[_Letter] = deque()
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

    def _begin_anew(self) -> None:
        """Forget, in a child of fork, what the parent sends, and the thread that only the parent has."""
        self._letters.clear()
        self._waiting_ids.clear()
        self._changed = threading.Condition()
        self._hurry = threading.Event()
        self._thread = None

    def put(self, lines: Sequence[tuple[str, str]], version: str | None) -> None:
        """Take over records; one whose id waits or went lately is left out.

        Parameters
        ----------
        lines : sequence of (str, str)
            Id and record line of each.
        version : str or None
            Model version that scored them.
        """
        with self._changed:
            for id_, line in lines:
                if id_ not in self._waiting_ids and id_ not in self._gone_ids:
                    self._waiting_ids.add(id_)
                    self._letters.append(_Letter(id_, line, version))
            while len(self._letters) > self._capacity:
                self._waiting_ids.discard(self._letters.popleft().id)
                if not self.dropped:
                    log.warning("the service has not taken measurements for long; the oldest are dropped")
                self.dropped += 1
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="tlp-outbox", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Records that are not acknowledged yet."""
        return len(self._letters)

    def flush(self, timeout_s: float) -> bool:
        """Wait until every record is acknowledged or refused, and return whether that happened in time."""
        self._hurry.set()
        with self._changed:
            return self._changed.wait_for(lambda: not self._letters, timeout_s)

    def close(self) -> None:
        """Stop sending. What waits is lost; `flush` first."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._hurry.set()

    def _run(self) -> None:
        pause_s = self._first_pause_s
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._letters or self._closed)
                if self._closed:
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

    def _next_batch(self) -> list[_Letter]:
        """Return the first letters of one version; they stay in the box until they are acknowledged."""
        version = self._letters[0].version
        batch: list[_Letter] = []
        for letter in self._letters:
            if letter.version != version or len(batch) == self._batch:
                break
            batch.append(letter)
        return batch

    def _send(self, batch: list[_Letter]) -> None:
        try:
            answer = self._connection.send(
                [(letter.id, letter.line) for letter in batch], worker=self._worker, version=batch[0].version
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

    def _remove(self, batch: list[_Letter], rejected: int) -> None:
        sent = {letter.id for letter in batch}
        with self._changed:
            # Letters may have been dropped meanwhile, so those sent are found by id at the head.
            while self._letters and self._letters[0].id in sent:
                gone = self._letters.popleft().id
                self._waiting_ids.discard(gone)
                self._gone_ids[gone] = None
            while len(self._gone_ids) > _REMEMBERED_IDS:
                del self._gone_ids[next(iter(self._gone_ids))]
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
            log.warning("%d measurements were not sent; upload the tuning log to keep them", box.waiting)

    atexit.register(flush)
    # Children of multiprocessing end without atexit.
    multiprocessing.util.Finalize(None, flush, exitpriority=10)
