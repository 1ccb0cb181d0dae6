"""The threads that score: they take from the fair queue whenever they are free, and wait for nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from tlp_service.errors import ApiError, DeadlinePassed, NotReady, ScoringFailed
from tlp_service.scoring.fair_queue import FairQueue, Job, Slice
from tlp_service.scoring.network import Encoded, OnnxNetwork
from tlp_service.scoring.plan import Plan, join

RawScores = npt.NDArray[np.float32]


class Candidates:
    """What one job has scored.

    Parameters
    ----------
    network : OnnxNetwork
        What scores it.
    table : ndarray of float32, shape (1 + primitives, row width)
        The padding row, then the distinct rows.
    plan : Plan
        Which rows each candidate has.
    """

    def __init__(self, network: OnnxNetwork, table: npt.NDArray[np.float32], plan: Plan) -> None:
        self.network = network
        self.table = table
        self.plan = plan
        self.raw = np.empty(len(plan.order), dtype=np.float32)
        self.future: Future[RawScores] = Future()
        self._encoded: Encoded | None = None
        self._encoding = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes that it holds, those of its encoded rows included."""
        return (
            self.table.nbytes
            + self.plan.nbytes
            + self.raw.nbytes
            + len(self.table) * self.network.encoded_bytes
        )

    def encoded(self) -> Encoded:
        """Return the encodings of the table; the first slice computes them."""
        with self._encoding:
            if self._encoded is None:
                self._encoded = self.network.encode(self.table)
            return self._encoded


class Executor:
    """Scores jobs in threads of its own.

    Parameters
    ----------
    queue : FairQueue
        Which candidates are next; owned by the executor from here on.
    threads : int
        Batches that are scored at a time.
    chunk : int
        Most candidates of one batch.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(
        self,
        queue: FairQueue[Candidates],
        threads: int,
        chunk: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._chunk = chunk
        self._clock = clock
        self._changed = threading.Condition()  # guards the queue and what follows
        self._is_draining = False
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"tlp-score-{n}", daemon=True) for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Candidates that wait now."""
        return self._queue.waiting

    @property
    def rate(self) -> float:
        """Candidates a second, as measured."""
        return self._queue.rate

    def submit(self, candidates: Candidates, client: str, deadline_s: float | None = None) -> Job[Candidates]:
        """Queue candidates; their raw scores come as the result of ``candidates.future``.

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
        # Not the version but its network: a batch must not mix those either.
        job = Job(client, candidates.network, len(candidates.raw), candidates.nbytes, deadline, candidates)
        with self._changed:
            if self._is_draining:
                raise NotReady("the server is stopping", retry_after=5)
            self._queue.offer(job, now)
            self._changed.notify(len(self._threads))
        return job

    def check(self, client: str, candidates: int, deadline_s: float | None) -> None:
        """Raise what `submit` would raise for so many candidates, before they are read."""
        now = self._clock()
        deadline = None if deadline_s is None else now + deadline_s
        with self._changed:
            self._queue.check(client, candidates, deadline, now)

    def withdraw(self, job: Job[Candidates]) -> None:
        """Forget a job that nobody waits for; a batch that is being scored is not stopped."""
        with self._changed:
            self._queue.withdraw(job)

    def drain(self) -> None:
        """Refuse what has not begun and what comes; what has begun ends as usual."""
        with self._changed:
            self._is_draining = True
            refused = self._queue.untouched()
            for job in refused:
                self._queue.withdraw(job)
        for job in refused:
            _fail(job, NotReady("the server is stopping", retry_after=5))

    def close(self) -> None:
        """End the threads when their batches are scored."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            slices, late, free_since = taken
            for job in late:
                _fail(job, DeadlinePassed("the deadline passed before all candidates were scored"))
            if slices:
                self._score(slices, free_since)

    def _take(self) -> tuple[list[Slice[Candidates]], list[Job[Candidates]], float] | None:
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

    def _score(self, slices: Sequence[Slice[Candidates]], started: float) -> None:
        try:
            _score_batch(slices)
        except Exception as error:  # noqa: BLE001  onnxruntime's exceptions have no common base
            if len(slices) > 1:
                # Whose fault it is shows when each is scored by itself.
                for part in slices:
                    self._score([part], self._clock())
                return
            self._abandon(slices[0].job, error)
            started = self._clock()  # a failure does not tell the rate
        seconds = (self._clock() - started) / len(self._threads)
        total = sum(part.count for part in slices)
        with self._changed:
            done = [p.job for p in slices if self._queue.returned(p, seconds * p.count / total)]
        for job in done:
            with suppress(InvalidStateError):  # cancelled meanwhile
                job.work.future.set_result(job.work.raw)

    def _abandon(self, job: Job[Candidates], error: Exception) -> None:
        self.withdraw(job)
        known = error if isinstance(error, ApiError) else ScoringFailed(f"the network failed: {error}")
        _fail(job, known)


def _score_batch(slices: Sequence[Slice[Candidates]]) -> None:
    runs = [part.job.work.plan.run(part.first, part.count) for part in slices]
    if len(slices) == 1:
        work, run = slices[0].job.work, runs[0]
        work.raw[run.candidates] = work.network.score(work.encoded(), run.positions, run.counts)
        return
    # All slices of a job refer to one table.
    works = list({id(part.job.work): part.job.work for part in slices}.values())
    network = works[0].network
    offsets = dict(zip(map(id, works), np.cumsum([0, *(len(w.table) for w in works)]).tolist(), strict=False))
    joined = join(runs, [offsets[id(part.job.work)] for part in slices])
    encoded = network.encode(np.concatenate([work.table for work in works]))
    raw = network.score(encoded, joined.positions, joined.counts)
    first = 0
    for part, run in zip(slices, runs, strict=True):
        part.job.work.raw[run.candidates] = raw[first : first + part.count]
        first += part.count


def _fail(job: Job[Candidates], error: Exception) -> None:
    with suppress(InvalidStateError):
        job.work.future.set_exception(error)
