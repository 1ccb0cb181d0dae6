"""Scoring of candidates as work for an `Executor`."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from tlp_service.errors import ScoringFailed
from tlp_service.inference.network import Encoded, OnnxNetwork
from tlp_service.inference.plan import Plan, join
from tlp_service.scheduling.executor import Work

log = logging.getLogger(__name__)

#: Estimated bytes of the Python objects of a request, beside its arrays.
_OBJECT_BYTES = 4096

#: Overhead of one run of the network, in units of one candidate.
_RUN_COST = 7

RawScores = npt.NDArray[np.float32]


class ScoringWork(Work[RawScores]):
    """Scores the candidates of a request: encodes their rows, then scores them in slices.

    Parameters
    ----------
    network : OnnxNetwork
        Network that scores the candidates. It is also the lane, because a batch must not mix versions.
    table : ndarray of float32, shape (rows, row width)
        Rows to which the plan refers.
    plan : Plan
        Order of the candidates, and the inputs of each run.
    """

    def __init__(self, network: OnnxNetwork, table: npt.NDArray[np.float32], plan: Plan) -> None:
        super().__init__()
        self.network = self.lane = network
        self.table = table
        self.plan = plan
        self._raw = np.empty(plan.candidates, dtype=np.float32)
        self._encoded: Encoded | None = None
        #: Encoding a row takes about as long as scoring one place of a candidate. If batches mix requests,
        #: each batch encodes its own rows, and there is no opening.
        self.opening = 0 if network.mixes else 1 + len(table) // plan.mean_length

    @property
    def size(self) -> int:
        """Units of work: candidates, plus the cost of encoding in units of a candidate."""
        return self.opening + len(self._raw)

    @property
    def nbytes(self) -> int:
        """Bytes that the work occupies, including its encoded rows."""
        return self.idle_bytes + len(self.table) * self.network.encoded_bytes

    @property
    def idle_bytes(self) -> int:
        """Bytes that the work occupies while it is not being scored."""
        return self.table.nbytes + self.plan.nbytes + self._raw.nbytes + _OBJECT_BYTES

    def run(self, first: int, count: int) -> None:
        """Score candidates; the first slice also encodes the rows, which is the opening."""
        if self._encoded is None:
            self._encoded = self.network.encode(self.table)
        begin, end = max(0, first - self.opening), first + count - self.opening
        run = self.plan.run(begin, end - begin)
        self._raw[run.candidates] = self.network.score(self._encoded, run.positions, run.values)

    def run_together(self, parts: Sequence[tuple[ScoringWork, int, int]]) -> None:
        """Score candidates of several requests in one run, with their tables concatenated."""
        runs = [work.plan.run(first - work.opening, count) for work, first, count in parts]
        tables = [work.table for work, _, _ in parts]
        joined = join(runs, [0, *accumulate(map(len, tables))][:-1])
        encoded = self.network.encode(np.concatenate(tables))
        raw = self.network.score(encoded, joined.positions, joined.values)
        ends = list(accumulate(len(run.candidates) for run in runs))
        for (work, _, _), run, of_work in zip(parts, runs, np.split(raw, ends[:-1]), strict=True):
            work._raw[run.candidates] = of_work

    def result(self) -> RawScores:
        """Return the raw scores, in the order of the candidates."""
        self._encoded = None  # free the memory now: the result may be kept while other work is done
        return self._raw

    def failure(self, error: Exception) -> Exception:
        """Log what a network has raised; the caller gets no inner detail."""
        log.error("the network failed", exc_info=error)
        return ScoringFailed("the network failed, see the server's log")


class SmallTasks(Work[list[RawScores]]):
    """The candidates of many small tasks as one job, since a job per task would cost more than scoring it.

    Each task is encoded and scored by itself, so its scores do not depend on the other tasks.

    Parameters
    ----------
    works : sequence of ScoringWork
        One or more tasks, each with at most as many candidates as a chunk.
    """

    def __init__(self, works: Sequence[ScoringWork]) -> None:
        super().__init__()
        self._works = works
        self._ends = list(accumulate(_RUN_COST + work.size for work in works))

    @property
    def size(self) -> int:
        """Units of work: candidates, plus the cost of encoding and of runs in units of a candidate."""
        return self._ends[-1]

    @property
    def nbytes(self) -> int:
        """Bytes that the work occupies, including the encoded rows of one task at a time."""
        encoded = max(len(work.table) * work.network.encoded_bytes for work in self._works)
        return encoded + sum(work.idle_bytes for work in self._works)

    def run(self, first: int, count: int) -> None:
        """Score the tasks whose last unit is in this range."""
        begin, end = bisect_right(self._ends, first), bisect_right(self._ends, first + count)
        by_network: dict[OnnxNetwork, list[ScoringWork]] = {}
        for work in self._works[begin:end]:
            by_network.setdefault(work.network, []).append(work)
        for network, works in by_network.items():
            if network.mixes:
                works[0].run_together([(work, 0, work.size) for work in works])
                continue
            for work in works:
                work.run(0, work.size)
                work.result()  # frees the encoded rows

    def result(self) -> list[RawScores]:
        """Return the raw scores of each task, in the order of its candidates."""
        return [work.result() for work in self._works]

    def failure(self, error: Exception) -> Exception:
        """Log what a network has raised; the caller gets no inner detail."""
        return self._works[0].failure(error)
