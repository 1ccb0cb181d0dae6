"""The threads that work: they take from a fair queue whenever they are free, and wait for nothing else."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Generic, TypeVar

from tlp_service.errors import DeadlinePassed, NotReady
from tlp_service.scheduling.fair_queue import FairQueue
from tlp_service.scheduling.job import Job, Slice

Result = TypeVar("Result")

#: Seconds that `Executor.close` waits for the batches that are being worked on.
_CLOSING_S = 10.0


class Work(ABC, Generic[Result]):
    """What one job does, unit by unit; `future` gets what it comes to.

    `lane`, `size`, `opening` and `nbytes` are those of `Job`.
    """

    lane: Hashable = None
    opening: int = 0
    #: Units that the last slice found to be left beyond `size`, for work whose amount is not known before. Such work runs in
    #: one thread at a time.
    more: int = 0

    def __init__(self) -> None:
        self.future: Future[Result] = Future()

    @property
    @abstractmethod
    def size(self) -> int:
        """Units of work, at least one."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that it holds until it is over."""

    @abstractmethod
    def run(self, first: int, count: int) -> None:
        """Do `count` units from place `first`."""

    def run_together(self, parts: Sequence[tuple[Any, int, int]]) -> None:
        """Do units of several works of this lane, ``(work, first, count)`` each, where the queue mixes."""
        for work, first, count in parts:
            work.run(first, count)

    @abstractmethod
    def result(self) -> Result:
        """Return what all units came to."""

    def failure(self, error: Exception) -> Exception:
        """Return what the future gets where a unit has raised."""
        return error


W = TypeVar("W", bound=Work[Any])


class Executor(Generic[W]):
    """Does the work of jobs in threads of its own.

    Parameters
    ----------
    queue : FairQueue
        What is next; owned by the executor from here on.
    threads : int
        Batches that are worked on at a time.
    chunk : int
        Most units of one batch.
    name : str
        Of the threads.
    before : callable
        Called before each batch: it may wait.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(
        self,
        queue: FairQueue[W],
        threads: int,
        chunk: int,
        name: str = "score",
        before: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._chunk = chunk
        self._before = before
        self._clock = clock
        self._changed = threading.Condition()  # guards the queue and what follows
        self._is_draining = False
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"tlp-{name}-{n}", daemon=True) for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Units that wait now."""
        return self._queue.waiting

    @property
    def is_busy(self) -> bool:
        """Whether there are jobs that are not over."""
        return not self._queue.is_empty

    @property
    def is_draining(self) -> bool:
        """Whether the server is stopping, and new work is refused."""
        return self._is_draining

    @property
    def clients(self) -> int:
        """Clients that wait now."""
        return self._queue.clients

    @property
    def rate(self) -> float:
        """Units a second, as measured."""
        return self._queue.rate

    def submit(self, work: W, client: str, deadline_s: float | None = None) -> Job[W]:
        """Queue work; what it comes to is the result of its future.

        Parameters
        ----------
        client : str
            In whose name; clients are served in turn.
        deadline_s : float or None
            Seconds from now after which nobody waits.

        Raises
        ------
        QueueFull, DeadlinePassed
            See `FairQueue.offer`.
        NotReady
            If the server is stopping.
        """
        now = self._clock()
        deadline = None if deadline_s is None else now + deadline_s
        job = Job(client, work.lane, work.size, work.opening, work.nbytes, deadline, work)
        with self._changed:
            if self._is_draining:
                raise NotReady("the server is stopping", retry_after=5)
            self._queue.offer(job, now)
            self._changed.notify(len(self._threads))
        return job

    def check(self, client: str, size: int, deadline_s: float | None) -> None:
        """Raise what `submit` would raise for work of that size, before it is there.

        Raises
        ------
        QueueFull, NotReady
            As `submit`.
        """
        now = self._clock()
        deadline = None if deadline_s is None else now + deadline_s
        with self._changed:
            if self._is_draining:
                raise NotReady("the server is stopping", retry_after=5)
            self._queue.check(client, size, deadline, now)

    def withdraw(self, job: Job[W]) -> None:
        """Forget a job that nobody waits for; a batch that is being worked on is not stopped."""
        with self._changed:
            self._queue.withdraw(job)
            self._changed.notify(len(self._threads))  # what waited for its opening can be taken now

    def drain(self, seconds: float) -> None:
        """Refuse what comes, what has not begun, and what cannot be done in so many seconds; the rest ends as usual."""
        with self._changed:
            self._is_draining = True
            room = seconds * self.rate
            ending = set()
            for job in sorted(self._queue.held(), key=lambda job: job.left):
                if job.taken and job.left <= room:
                    room -= job.left
                    ending.add(job)
        self._refuse(lambda job: job not in ending)

    def close(self) -> None:
        """Refuse all that is left, and end the threads when their batches are done."""
        with self._changed:
            self._is_draining = self._is_closed = True
            self._changed.notify_all()
        until = time.monotonic() + _CLOSING_S
        for thread in self._threads:
            # A thread that hangs in a device must not keep the process alive.
            thread.join(max(0.0, until - time.monotonic()))
        self._refuse(lambda job: True)

    def _refuse(self, is_refused: Callable[[Job[W]], bool]) -> None:
        with self._changed:
            refused = [job for job in self._queue.held() if is_refused(job)]
            for job in refused:
                self._queue.withdraw(job)
        for job in refused:
            _fail(job, NotReady("the server is stopping", retry_after=5))

    def _work(self) -> None:
        while self._turn():
            pass  # nothing of a turn is held while the next one waits

    def _turn(self) -> bool:
        """Do what is next; return whether there may be more."""
        taken = self._take()
        if taken is None:
            return False
        slices, late, free_since = taken
        for job in late:
            _fail(job, DeadlinePassed("the deadline passed before the request was done"))
        if slices:
            self._run(slices, free_since)
        return True

    def _take(self) -> tuple[list[Slice[W]], list[Job[W]], float] | None:
        """Return the next batch and who is too late for it, as soon as there is either; None at the end.

        The third is since when this thread was free for it. What passes until it has the batch, because other threads
        have the interpreter, counts in the rate.
        """
        free_since = self._clock()
        with self._changed:
            while not self._is_closed:
                slices, late = self._queue.take(self._chunk, self._clock())
                if slices or late:
                    return slices, late, free_since
                self._changed.wait()
                free_since = self._clock()
        return None

    def _run(self, slices: Sequence[Slice[W]], started: float) -> None:
        first = slices[0].job.work
        self._before()
        try:
            if len(slices) == 1:
                first.run(slices[0].first, slices[0].count)
            else:
                first.run_together([(part.job.work, part.first, part.count) for part in slices])
        except Exception as error:  # noqa: BLE001  onnxruntime's exceptions have no common base
            if len(slices) > 1:
                # Whose fault it is shows when each is done by itself.
                for part in slices:
                    self._run([part], self._clock())
                return
            self.withdraw(slices[0].job)
            _fail(slices[0].job, first.failure(error))
            started = self._clock() + 1  # a failure does not tell the rate
        seconds = max(0.0, self._clock() - started) / len(self._threads)
        total = sum(part.count for part in slices)
        with self._changed:
            done = [
                p.job for p in slices if self._queue.returned(p, seconds * p.count / total, p.job.work.more)
            ]
            if any(part.first < part.job.opening or part.job.work.more for part in slices):
                # There is new work: candidates after an opening, or units that the slice found.
                self._changed.notify(len(self._threads))
        for job in done:
            try:
                result = job.work.result()
            except Exception as error:  # noqa: BLE001  no thread may end because of what one job does
                _fail(job, job.work.failure(error))
                continue
            with suppress(InvalidStateError):  # cancelled meanwhile
                job.work.future.set_result(result)


def _fail(job: Job[W], error: Exception) -> None:
    with suppress(InvalidStateError):
        job.work.future.set_exception(error)
