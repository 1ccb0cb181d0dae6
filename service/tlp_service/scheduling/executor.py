"""Worker threads that take batches from a fair queue."""

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

#: Maximum seconds that `Executor.close` waits for batches in progress.
_CLOSING_S = 10.0


class Work(ABC, Generic[Result]):
    """The work of one job, done unit by unit; `future` gets the result.

    `lane`, `size`, `opening` and `nbytes` have the same meaning as in `Job`.
    """

    lane: Hashable = None
    opening: int = 0
    #: Units beyond `size` that the last slice found, for work whose amount is not known in advance.
    #: Such work runs in one thread at a time.
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
        """Bytes that the work occupies until its job is over."""

    @abstractmethod
    def run(self, first: int, count: int) -> None:
        """Do `count` units, beginning with unit `first`."""

    def run_together(self, parts: Sequence[tuple[Any, int, int]]) -> None:
        """Do units of several jobs of this lane in one batch, given as ``(work, first, count)``."""
        for work, first, count in parts:
            work.run(first, count)

    @abstractmethod
    def result(self) -> Result:
        """Return the result after all units are done."""

    def failure(self, error: Exception) -> Exception:
        """Return the exception for the future after a unit raised `error`."""
        return error


W = TypeVar("W", bound=Work[Any])


class Executor(Generic[W]):
    """Does the work of jobs in its own threads.

    Parameters
    ----------
    queue : FairQueue
        Queue of jobs. From now on, only the executor may use it.
    threads : int
        Number of threads, and so the maximum number of concurrent batches.
    chunk : int
        Maximum units of one batch.
    name : str
        Part of the names of the threads.
    before : callable
        Called before each batch; it may block to delay the batch.
    clock : callable
        Returns the current time in seconds; must be monotonic.
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
        """Number of queued units."""
        return self._queue.waiting

    @property
    def is_busy(self) -> bool:
        """Whether there are unfinished jobs."""
        return not self._queue.is_empty

    @property
    def is_draining(self) -> bool:
        """Whether the server is stopping, and new work is refused."""
        return self._is_draining

    @property
    def clients(self) -> int:
        """Number of clients with queued work."""
        return self._queue.clients

    @property
    def rate(self) -> float:
        """Measured service rate in units per second."""
        return self._queue.rate

    def submit(self, work: W, client: str, deadline_s: float | None = None) -> Job[W]:
        """Queue work; its future gets the result.

        Parameters
        ----------
        client : str
            Name of the client, for fair queueing.
        deadline_s : float or None
            Seconds from now after which the client no longer waits.

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
        """Raise the error that `submit` would raise for work of that size, before the work exists.

        Raises
        ------
        QueueFull, NotReady
            See `submit`.
        """
        now = self._clock()
        deadline = None if deadline_s is None else now + deadline_s
        with self._changed:
            if self._is_draining:
                raise NotReady("the server is stopping", retry_after=5)
            self._queue.check(client, size, deadline, now)

    def withdraw(self, job: Job[W]) -> None:
        """Remove a job whose client left; a batch in progress is not interrupted."""
        with self._changed:
            self._queue.withdraw(job)
            self._changed.notify(len(self._threads))  # a job may become ready

    def drain(self, seconds: float) -> None:
        """Refuse new jobs, jobs that have not begun, and jobs that cannot be done within `seconds`.

        The other jobs are completed as usual.
        """
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
        """Refuse all remaining jobs, and end the threads after their current batches."""
        with self._changed:
            self._is_draining = self._is_closed = True
            self._changed.notify_all()
        until = time.monotonic() + _CLOSING_S
        for thread in self._threads:
            # The wait is bounded, because a thread that hangs in a device must not keep the process alive.
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
            pass  # a separate method, so that no object of a batch stays alive while the thread is idle

    def _turn(self) -> bool:
        """Do the next batch; return False if the executor is closed."""
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
        """Wait for the next batch or for late jobs and return them; return None if the executor is closed.

        The third element is the time when this thread became idle. Time spent waiting for the GIL after that
        counts toward the measured rate.
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
                # Run each job alone to find the one that fails.
                for part in slices:
                    self._run([part], self._clock())
                return
            self.withdraw(slices[0].job)
            _fail(slices[0].job, first.failure(error))
            started = self._clock() + 1  # a failure must not affect the measured rate
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
