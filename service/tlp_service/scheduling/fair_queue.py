"""A fair queue with admission control. It has no threads, clock or network of its own.

The queue implements start-time fair queueing (Goyal, Vin, Cheng 1996), counted in units of work: candidates
for scoring, units of reading for bodies. Each client has one FIFO and a start tag: the number of units served
to it since the queue was last empty. The client with the smallest tag is served a slice, and its tag grows by
the slice. A client that returns starts at the tag currently being served, so it gets neither a penalty nor
credit for its absence. Among clients that always have work, this is round robin.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic

from tlp_service.errors import DeadlinePassed, QueueFull
from tlp_service.scheduling.demand import Demands
from tlp_service.scheduling.job import Job, Slice, Work

#: Safety factor of admission control: a request is refused if this times its estimated time exceeds its
#: deadline.
_CAUTION = 1.4

#: Iterations of the estimate of how much work arrives while a job is queued.
_STEPS = 3

#: Smoothing factor of the average service rate.
_NEWNESS = 0.05

#: Maximum number of clients whose demand is tracked, and of idle clients whose tag is kept.
_REMEMBERED_CLIENTS = 1024


@dataclass(slots=True, eq=False)
class _Client(Generic[Work]):
    tag: float
    turn: int  # number of its last turn; 0 before the first
    jobs: deque[Job[Work]] = field(default_factory=deque)
    left: int = 0


class FairQueue(Generic[Work]):
    """Queued jobs, and the order in which their work is done. Not thread-safe.

    Parameters
    ----------
    max_size, max_bytes : int
        Maximum units and bytes in the queue. Each client is entitled to an equal share; a single client to
        all.
    rate : float
        Assumed service rate in units per second, until it has been measured.
    mixes : bool
        Whether one batch may contain slices of several jobs.
    unit : str
        Name of a unit of work, for error messages.
    """

    def __init__(
        self, max_size: int, max_bytes: int, rate: float, mixes: bool = False, unit: str = "candidates"
    ) -> None:
        self._max_size = max_size
        self._max_bytes = max_bytes
        self._mixes = mixes
        self._unit = unit
        # Decaying sums of units and seconds, so that a long slice has more weight than a short one.
        self._measured, self._measured_s = rate, 1.0
        self._clients: dict[str, _Client[Work]] = {}  # clients with queued jobs
        self._idle: dict[str, float] = {}  # tags of clients without queued jobs
        self._demands = Demands(_REMEMBERED_CLIENTS)
        self._now = 0.0  # tag of the client being served
        self._turns = 0
        self._held: set[Job[Work]] = set()
        self._bytes_of: Counter[str] = Counter()
        self.waiting = 0

    @property
    def rate(self) -> float:
        """Measured service rate in units per second."""
        return self._measured / self._measured_s

    @property
    def clients(self) -> int:
        """Number of clients with queued work."""
        return len(self._clients)

    @property
    def held_bytes(self) -> int:
        """Bytes of all unfinished jobs."""
        return self._bytes_of.total()

    def offer(self, job: Job[Work], now: float) -> None:
        """Add a job to the queue.

        Raises
        ------
        DeadlinePassed
            If its deadline has passed.
        QueueFull
            If the job does not fit, or would probably miss its deadline. An empty queue accepts every job, so
            a wrong estimate of the rate corrects itself.
        """
        if job.deadline is not None and now >= job.deadline:
            raise DeadlinePassed("the deadline passed before the request could be worked on")
        self._demands.add(job.client, job.size, now)
        self._check_room(job.client, job.size, job.nbytes, job.deadline, now)
        self._append(job, job.size)
        self._held.add(job)
        self._bytes_of[job.client] += job.nbytes

    def check(self, client: str, size: int, deadline: float | None, now: float) -> None:
        """Raise `QueueFull` if `offer` would raise it for a job of that size and 0 bytes."""
        # A request that is refused unread does not count as demand: its stated size may be wrong.
        self._check_room(client, size, 0, deadline, now)

    def seconds_for(self, client: str, size: int, now: float) -> float:
        """Return the estimated seconds until a job that arrives now would be done.

        Before the job is done, the queue serves the earlier work of its client, and at most as much of each
        other client. That includes the work that other clients will send in the meantime at their current
        rates.
        """
        own = self._clients.get(client)
        ahead = size + (own.left if own else 0)
        others = {name: other.left for name, other in self._clients.items() if name != client}
        rates = {name: rate for name, rate in self._demands.rates(now, self._bytes_of) if name != client}
        seconds = (ahead + sum(min(left, ahead) for left in others.values())) / self.rate
        for _ in range(_STEPS if rates else 0):  # arriving work prolongs the wait, in which more work arrives
            coming = (
                min(others.get(name, 0) + rates.get(name, 0.0) * seconds, ahead)
                for name in others.keys() | rates.keys()
            )
            seconds = (ahead + sum(coming)) / self.rate
        return seconds

    def take(self, max_units: int, now: float) -> tuple[list[Slice[Work]], list[Job[Work]]]:
        """Return the slices of the next batch, and the jobs whose deadline has passed.

        The batch has at most `max_units` units of one lane, not counting openings. It is empty only if
        nothing is queued, except for jobs that wait for their opening.
        """
        slices: list[Slice[Work]] = []
        late: list[Job[Work]] = []
        room = max_units
        for name, client in sorted(self._clients.items(), key=_place) if self._mixes else self._best():
            # A job whose opening is in progress does not block the other jobs of its client.
            while room > 0 and (job := next((j for j in client.jobs if j.next_slice), None)) is not None:
                if job.deadline is not None and now >= job.deadline:
                    self.withdraw(job)
                    late.append(job)
                    continue
                if slices and job.lane != slices[0].job.lane:
                    break
                if not slices:
                    self._now = client.tag
                count = min(room, job.next_slice)
                room -= count
                slices.append(self._serve(name, client, job, count + (0 if job.taken else job.opening)))
                if not self._mixes:
                    return slices, late
            if room <= 0:
                break
        return slices, late

    def returned(self, part: Slice[Work], seconds: float, more: int = 0) -> bool:
        """Record that a slice is done; return whether that completes its job.

        Parameters
        ----------
        seconds : float
            Seconds for which the slice kept the whole processor busy; 0 if it must not affect the rate.
        more : int
            Additional units found while doing the slice. They are queued behind the other jobs of the client.
        """
        if seconds > 0:
            self._measured = (1 - _NEWNESS) * self._measured + part.count
            self._measured_s = (1 - _NEWNESS) * self._measured_s + seconds
        job = part.job
        job.done += part.count
        if job.is_over:
            return False
        if more:
            self._extend(job, more)
        if job.done < job.size:
            return False
        self._end(job)
        return True

    def withdraw(self, job: Job[Work]) -> None:
        """Remove a job and its queued work because its caller left; do nothing if it is over already."""
        if job.is_over:
            return
        self._end(job)
        if job.left:
            client = self._clients[job.client]
            client.jobs.remove(job)
            self._leave(job.client, client, job.left)

    @property
    def is_empty(self) -> bool:
        """Whether there are no unfinished jobs."""
        return not self._held

    def held(self) -> list[Job[Work]]:
        """Return the unfinished jobs."""
        return list(self._held)

    def _check_room(self, client: str, size: int, nbytes: int, deadline: float | None, now: float) -> None:
        if not self._held:
            return
        if deadline is not None:
            seconds = self.seconds_for(client, size, now)
            if now + _CAUTION * seconds > deadline:
                raise QueueFull(
                    f"queue full: {self.waiting} {self._unit} are queued, so this request would take about "
                    f"{seconds:.1f} s, beyond its deadline; retry later",
                    retry_after=math.ceil(_CAUTION * seconds - (deadline - now)),
                )
        clients = len(self._clients.keys() | {client})
        own = self._clients[client].left if client in self._clients else 0
        for waiting, of_client, limit, what in (
            (self.waiting + size, own + size, self._max_size, self._unit),
            (self.held_bytes + nbytes, self._bytes_of[client] + nbytes, self._max_bytes, "bytes"),
        ):
            # Up to twice the bound, a client below its share is still admitted. Otherwise one client could
            # lock out all others.
            if waiting > 2 * limit or (waiting > limit and of_client > limit // clients):
                raise QueueFull(
                    f"queue full: this request would bring it to {waiting} {what} (limit {limit}), "
                    f"{of_client} of them from client {client!r}; retry later",
                    retry_after=max(1, math.ceil(self.waiting / self.rate)),
                )

    def _best(self) -> Iterator[tuple[str, _Client[Work]]]:
        """Yield clients in order of their tags.

        The next one is searched anew each time, because a client may run out of jobs in the meantime.
        """
        passed_over: set[str] = set()
        while len(passed_over) < len(self._clients):
            name, client = min(((n, c) for n, c in self._clients.items() if n not in passed_over), key=_place)
            yield name, client
            if name in self._clients:
                passed_over.add(name)

    def _serve(self, name: str, client: _Client[Work], job: Job[Work], count: int) -> Slice[Work]:
        part = Slice(job, job.taken, count)
        job.taken += count
        client.tag += count
        self._turns += 1
        client.turn = self._turns
        if not job.left:
            client.jobs.remove(job)
        self._leave(name, client, count)
        return part

    def _append(self, job: Job[Work], count: int) -> None:
        """Append `count` units of a job to the queue of its client."""
        client = self._clients.get(job.client)
        if client is None:
            client = _Client(max(self._now, self._idle.pop(job.client, 0.0)), 0)
            self._clients[job.client] = client
        client.jobs.append(job)
        client.left += count
        self.waiting += count

    def _extend(self, job: Job[Work], more: int) -> None:
        had_units_left = job.left > 0
        job.size += more
        if had_units_left:  # the job is still in the queue of its client
            self._clients[job.client].left += more
            self.waiting += more
        else:
            self._append(job, more)

    def _leave(self, name: str, client: _Client[Work], count: int) -> None:
        client.left -= count
        self.waiting -= count
        if client.jobs:
            return
        del self._clients[name]
        self._idle[name] = client.tag
        if not self._clients:
            # The queue is empty, so no client is owed service and all tags restart at 0.
            self._idle.clear()
            self._now = 0.0
        elif len(self._idle) > _REMEMBERED_CLIENTS:
            # Callers choose their names, so the number of idle clients needs a bound. Keep the latest of
            # those whose tag is ahead.
            owed = [(name, tag) for name, tag in self._idle.items() if tag > self._now]
            self._idle = dict(owed[-_REMEMBERED_CLIENTS // 2 :])

    def _end(self, job: Job[Work]) -> None:
        job.is_over = True
        self._held.discard(job)
        self._bytes_of[job.client] -= job.nbytes
        if not self._bytes_of[job.client]:
            del self._bytes_of[job.client]


def _place(item: tuple[str, _Client[Work]]) -> tuple[float, int, int]:
    """Return the sort key of a client: its tag, then its last turn, then the size of its queued work."""
    client = item[1]
    return client.tag, client.turn, client.left
