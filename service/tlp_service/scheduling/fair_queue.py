"""Whose work is done next: a policy without threads, clock or network of its own.

Start-time fair queueing (Goyal, Vin, Cheng 1996), counted in units of work: candidates where they are scored, bytes where bodies
are read. Each client has one FIFO and a start tag: how many units it has been served since the queue was last empty. The client
with the least tag is served a slice, and its tag grows by the slice. A client that comes back begins at the tag that is being
served, so it neither waits for those that are behind it nor is paid for the time it was away. Between clients that all have work
this is round robin.
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

#: A request is refused where this times the time that it will probably take goes beyond its deadline.
_CAUTION = 1.4

#: Steps in which it is found how much will come while a job waits.
_STEPS = 3

#: Share of what was measured that the next slice displaces.
_NEWNESS = 0.05

#: Clients whose demand, or whose tag while they have no work, is remembered.
_REMEMBERED_CLIENTS = 1024


@dataclass(slots=True, eq=False)
class _Client(Generic[Work]):
    tag: float
    turn: int  # 0 for who has just come
    jobs: deque[Job[Work]] = field(default_factory=deque)
    left: int = 0


class FairQueue(Generic[Work]):
    """Jobs that wait, and the order in which their work is taken. Not thread-safe.

    Parameters
    ----------
    max_size, max_bytes : int
        What may wait. A client may always have its share of that, which is all of it for the only one.
    rate : float
        Units a second that are done, until it has been measured.
    mixes : bool
        Whether one batch takes from several jobs.
    unit : str
        What is counted, for messages.
    """

    def __init__(
        self, max_size: int, max_bytes: int, rate: float, mixes: bool = False, unit: str = "candidates"
    ) -> None:
        self._max_size = max_size
        self._max_bytes = max_bytes
        self._mixes = mixes
        self._unit = unit
        # Decayed sums of what was measured: a long slice counts for more than a short one.
        self._measured, self._measured_s = rate, 1.0
        self._clients: dict[str, _Client[Work]] = {}  # those that have jobs
        self._idle: dict[str, float] = {}  # tags of those that have none
        self._demands = Demands(_REMEMBERED_CLIENTS)
        self._now = 0.0  # the tag that is being served
        self._turns = 0
        self._held: set[Job[Work]] = set()
        self._bytes_of: Counter[str] = Counter()
        self.waiting = 0

    @property
    def rate(self) -> float:
        """Units a second, as measured."""
        return self._measured / self._measured_s

    @property
    def clients(self) -> int:
        """Clients that have work waiting."""
        return len(self._clients)

    @property
    def held_bytes(self) -> int:
        """Bytes of all jobs that are not over."""
        return self._bytes_of.total()

    def offer(self, job: Job[Work], now: float) -> None:
        """Take a job in.

        Raises
        ------
        DeadlinePassed
            If its deadline has passed.
        QueueFull
            If it does not fit, or will probably not be done by its deadline. An empty queue takes everything: a rate
            that was measured wrong is then measured anew.
        """
        if job.deadline is not None and now >= job.deadline:
            raise DeadlinePassed("the deadline passed before the request could be worked on")
        self._demands.add(job.client, job.size, now)
        self._check_room(job.client, job.size, job.nbytes, job.deadline, now)
        self._append(job, job.size)
        self._held.add(job)
        self._bytes_of[job.client] += job.nbytes

    def check(self, client: str, size: int, deadline: float | None, now: float) -> None:
        """Raise `QueueFull` where `offer` would for a job of that size and no bytes."""
        # What is refused unread does not count as asked for: nobody knows whether it was there.
        self._check_room(client, size, 0, deadline, now)

    def seconds_for(self, client: str, size: int, now: float) -> float:
        """Return how long a job would probably take that comes now.

        Until it is done its client's work is done, and of each other client at most as much: of what waits, and
        of what it will bring meanwhile if it goes on to ask as it did.
        """
        own = self._clients.get(client)
        ahead = size + (own.left if own else 0)
        others = {name: other.left for name, other in self._clients.items() if name != client}
        rates = {name: rate for name, rate in self._demands.rates(now, self._bytes_of) if name != client}
        seconds = (ahead + sum(min(left, ahead) for left in others.values())) / self.rate
        for _ in range(_STEPS if rates else 0):  # what comes meanwhile makes it longer, in which more comes
            coming = (
                min(others.get(name, 0) + rates.get(name, 0.0) * seconds, ahead)
                for name in others.keys() | rates.keys()
            )
            seconds = (ahead + sum(coming)) / self.rate
        return seconds

    def take(self, max_units: int, now: float) -> tuple[list[Slice[Work]], list[Job[Work]]]:
        """Return what to do next, at most `max_units` units of one lane beside openings, and the jobs that were found too late.

        Nothing is returned only if nothing waits but for openings that are being done.
        """
        slices: list[Slice[Work]] = []
        late: list[Job[Work]] = []
        room = max_units
        for name, client in sorted(self._clients.items(), key=_place) if self._mixes else self._best():
            # One that is being opened does not keep its client's others waiting.
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
        """Note that a slice was done; return whether its job is done with that.

        Parameters
        ----------
        seconds : float
            For how long it kept all of the processor busy; 0 for what does not tell the rate.
        more : int
            Units of the job that were not known before. They are queued behind the other jobs of its client.
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
        """Forget a job that nobody waits for any more, and what it has waiting; one that is over stays so."""
        if job.is_over:
            return
        self._end(job)
        if job.left:
            client = self._clients[job.client]
            client.jobs.remove(job)
            self._leave(job.client, client, job.left)

    @property
    def is_empty(self) -> bool:
        """Whether all jobs are over."""
        return not self._held

    def held(self) -> list[Job[Work]]:
        """Return the jobs that are not over."""
        return list(self._held)

    def _check_room(self, client: str, size: int, nbytes: int, deadline: float | None, now: float) -> None:
        if not self._held:
            return
        if deadline is not None:
            seconds = self.seconds_for(client, size, now)
            if now + _CAUTION * seconds > deadline:
                raise QueueFull(
                    f"{self.waiting} {self._unit} wait already: these would take some {seconds:.1f} s, "
                    f"beyond their deadline",
                    retry_after=math.ceil(_CAUTION * seconds - (deadline - now)),
                )
        clients = len(self._clients.keys() | {client})
        own = self._clients[client].left if client in self._clients else 0
        for waiting, of_client, limit, what in (
            (self.waiting + size, own + size, self._max_size, self._unit),
            (self.held_bytes + nbytes, self._bytes_of[client] + nbytes, self._max_bytes, "bytes"),
        ):
            # Beyond the bound a client that has little still gets its share, for else one could fill it for all.
            if waiting > 2 * limit or (waiting > limit and of_client > limit // clients):
                raise QueueFull(
                    f"{waiting} {what} would wait with these, of them {of_client} of {client!r}, where {limit} may",
                    retry_after=max(1, math.ceil(self.waiting / self.rate)),
                )

    def _best(self) -> Iterator[tuple[str, _Client[Work]]]:
        """Yield the client whose turn it is; looked for anew each time, for one may be left without jobs meanwhile."""
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
            # Nobody waits, so nobody is owed anything.
            self._idle.clear()
            self._now = 0.0
        elif len(self._idle) > _REMEMBERED_CLIENTS:
            # Callers choose their names, so the number of idle clients needs a bound: keep the latest of those whose tag is ahead.
            owed = [(name, tag) for name, tag in self._idle.items() if tag > self._now]
            self._idle = dict(owed[-_REMEMBERED_CLIENTS // 2 :])

    def _end(self, job: Job[Work]) -> None:
        job.is_over = True
        self._held.discard(job)
        self._bytes_of[job.client] -= job.nbytes
        if not self._bytes_of[job.client]:
            del self._bytes_of[job.client]


def _place(item: tuple[str, _Client[Work]]) -> tuple[float, int, int]:
    """Where tags are equal, who has just come is before who had a turn; of those the one that asks for least."""
    client = item[1]
    return client.tag, client.turn, client.left
