"""Whose candidates are scored next: a policy without threads, clock or network of its own.

Start-time fair queueing (Goyal, Vin, Cheng 1996), counted in candidates. Each client has one FIFO and a start tag: how many
candidates it has been served since the queue was last empty. The client with the least tag is served a slice, and its tag grows by the slice.
A client that comes back begins at the tag that is being served, so it neither waits for those that are behind it nor is
paid for the time it was away. Between clients that all have work this is round robin.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tlp_service.errors import DeadlinePassed, QueueFull

Work = TypeVar("Work")

#: A request is refused where this times the time that it will probably take goes beyond its deadline.
_CAUTION = 1.25

#: Share of a new measurement in the rate.
_NEWNESS = 0.05

#: Seconds over which it is measured how much a client asks for.
_DEMAND_S = 5.0

#: Clients without work that are remembered before the outdated ones are dropped.
_IDLE_CLIENTS = 1024


@dataclass(slots=True, eq=False)
class Job(Generic[Work]):
    """A request in the queue.

    Parameters
    ----------
    client : str
        Whose it is.
    lane : hashable
        What scores it; candidates of two lanes are never in one batch.
    candidates : int
        How many there are to score, at least one.
    nbytes : int
        Bytes that it holds while it waits.
    deadline : float or None
        Time after which nobody waits for the scores.
    work : object
        What to do, not looked at here.
    taken, scored : int
        Candidates that were handed out, and that came back.
    is_over : bool
        Whether it has ended: scored, withdrawn or too late.
    """

    client: str
    lane: Hashable
    candidates: int
    nbytes: int
    deadline: float | None
    work: Work
    taken: int = 0
    scored: int = 0
    is_over: bool = False

    @property
    def left(self) -> int:
        """Candidates that were not handed out."""
        return self.candidates - self.taken


@dataclass(frozen=True, slots=True)
class Slice(Generic[Work]):
    """Candidates of a job that are scored together: `count` from place `first`."""

    job: Job[Work]
    first: int
    count: int


@dataclass(slots=True, eq=False)
class _Client(Generic[Work]):
    tag: float
    turn: int  # 0 for who has just come
    jobs: deque[Job[Work]] = field(default_factory=deque)
    left: int = 0


@dataclass(slots=True)
class _Demand:
    """Candidates a second that a client asks for, and when it last did."""

    rate: float
    at: float

    def add(self, candidates: int, now: float) -> None:
        self.rate = self.rate_at(now) + candidates / _DEMAND_S
        self.at = now

    def rate_at(self, now: float) -> float:
        return self.rate * math.exp((self.at - now) / _DEMAND_S)


class FairQueue(Generic[Work]):
    """Jobs that wait, and the order in which their candidates are taken. Not thread-safe.

    Parameters
    ----------
    max_candidates, max_bytes : int
        What may wait; a job that goes beyond is refused unless nothing waits.
    rate : float
        Candidates a second that are scored, until it has been measured.
    mixes : bool
        Whether one batch takes candidates of several jobs.
    """

    def __init__(self, max_candidates: int, max_bytes: int, rate: float, mixes: bool = False) -> None:
        self._max_candidates = max_candidates
        self._max_bytes = max_bytes
        self._mixes = mixes
        self._rate = rate
        self._clients: dict[str, _Client[Work]] = {}  # those that have jobs
        self._idle: dict[str, float] = {}  # tags of those that have none
        self._demands: dict[str, _Demand] = {}
        self._now = 0.0  # the tag that is being served
        self._turns = 0
        self._held: set[Job[Work]] = set()
        self.waiting = 0
        self.held_bytes = 0

    @property
    def rate(self) -> float:
        """Candidates a second, as measured."""
        return self._rate

    @property
    def clients(self) -> int:
        """Clients that have candidates waiting."""
        return len(self._clients)

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
            raise DeadlinePassed("the deadline passed before the candidates could be scored")
        self._demand(job.client, now).add(job.candidates, now)
        self._check_room(job.client, job.candidates, job.nbytes, job.deadline, now)
        client = self._clients.get(job.client)
        if client is None:
            client = _Client(max(self._now, self._idle.pop(job.client, 0.0)), 0)
            self._clients[job.client] = client
        client.jobs.append(job)
        client.left += job.candidates
        self._held.add(job)
        self.waiting += job.candidates
        self.held_bytes += job.nbytes

    def check(self, client: str, candidates: int, deadline: float | None, now: float) -> None:
        """Raise what `offer` would raise for a job of so many candidates and no bytes."""
        try:
            self._check_room(client, candidates, 0, deadline, now)
        except QueueFull:
            self._demand(client, now).add(candidates, now)
            raise

    def seconds_for(self, client: str, candidates: int, deadline: float | None, now: float) -> float:
        """Return how long a job would probably take that comes now, at most until its deadline.

        Until it is done its client's candidates are served, and of each other client at most as many: of what waits, and
        of what it will bring meanwhile if it goes on to ask as it did.
        """
        own = self._clients.get(client)
        ahead = candidates + (own.left if own else 0)
        others: dict[str, float] = {name: other.left for name, other in self._clients.items()}
        if deadline is not None:
            for name, demand in self._demands.items():
                others[name] = others.get(name, 0) + demand.rate_at(now) * (deadline - now)
        others.pop(client, None)
        return (ahead + sum(min(left, ahead) for left in others.values())) / self._rate

    def take(self, most: int, now: float) -> tuple[list[Slice[Work]], list[Job[Work]]]:
        """Return what to score next, at most `most` candidates of one lane, and the jobs that were found to be too late.

        Nothing is returned only if nothing waits.
        """
        slices: list[Slice[Work]] = []
        late: list[Job[Work]] = []
        room = most
        for name, client in self._in_order():
            while client.jobs and room:
                job = client.jobs[0]
                if job.deadline is not None and now >= job.deadline:
                    self.withdraw(job)
                    late.append(job)
                    continue
                if slices and job.lane != slices[0].job.lane:
                    break
                slices.append(self._serve(name, client, job, min(room, job.left)))
                room -= slices[-1].count
                if not self._mixes:
                    return slices, late
            if not room:
                break
        return slices, late

    def returned(self, part: Slice[Work], seconds: float) -> bool:
        """Note that a slice was scored; return whether its job is done with that.

        Parameters
        ----------
        seconds : float
            For how long it kept all of the processor busy; 0 for what does not tell the rate.
        """
        if seconds > 0:
            # The mean of times, not of rates: one that seems to have taken no time must not decide.
            each = 1 / self._rate
            self._rate = 1 / (each + _NEWNESS * (seconds / part.count - each))
        job = part.job
        job.scored += part.count
        if job.is_over or job.scored < job.candidates:
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

    def untouched(self) -> list[Job[Work]]:
        """Return the jobs of which nothing was taken yet."""
        return [job for job in self._held if job.taken == 0]

    def _check_room(
        self, client: str, candidates: int, nbytes: int, deadline: float | None, now: float
    ) -> None:
        if not self._held:
            return
        seconds = self.seconds_for(client, candidates, deadline, now)
        if deadline is not None and now + _CAUTION * seconds > deadline:
            raise QueueFull(
                f"{self.waiting} candidates wait already: these would take some {seconds:.1f} s, "
                f"beyond their deadline",
                retry_after=math.ceil(_CAUTION * seconds - (deadline - now)),
            )
        for waiting, more, most, what in (
            (self.waiting, candidates, self._max_candidates, "candidates"),
            (self.held_bytes, nbytes, self._max_bytes, "bytes"),
        ):
            if waiting + more > most:
                raise QueueFull(
                    f"{waiting} {what} wait already, {more} more are beyond the {most} that may",
                    retry_after=max(1, math.ceil(self.waiting / self._rate)),
                )

    def _demand(self, client: str, now: float) -> _Demand:
        if client not in self._demands:
            if len(self._demands) >= _IDLE_CLIENTS:
                recent = now - 4 * _DEMAND_S
                self._demands = {name: d for name, d in self._demands.items() if d.at > recent}
            self._demands[client] = _Demand(0.0, now)
        return self._demands[client]

    def _in_order(self) -> Iterator[tuple[str, _Client[Work]]]:
        if not self._mixes:
            # Looked for anew each time, since one that is too late may leave its client without jobs.
            while self._clients:
                yield min(self._clients.items(), key=_place)
            return
        yield from sorted(self._clients.items(), key=_place)

    def _serve(self, name: str, client: _Client[Work], job: Job[Work], count: int) -> Slice[Work]:
        part = Slice(job, job.taken, count)
        job.taken += count
        self._now = client.tag
        client.tag += count
        self._turns += 1
        client.turn = self._turns
        if not job.left:
            client.jobs.popleft()
        self._leave(name, client, count)
        return part

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
        elif len(self._idle) > _IDLE_CLIENTS:
            self._idle = {name: tag for name, tag in self._idle.items() if tag > self._now}

    def _end(self, job: Job[Work]) -> None:
        job.is_over = True
        self._held.discard(job)
        self.held_bytes -= job.nbytes


def _place(item: tuple[str, _Client[Work]]) -> tuple[float, int, int]:
    """Where tags are equal, who has just come is before who had a turn; of those the one that asks for least."""
    client = item[1]
    return client.tag, client.turn, client.left
