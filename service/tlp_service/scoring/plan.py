"""Which rows stand where in the runs that score a request: pure arithmetic on indices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the network.

    Parameters
    ----------
    candidates : ndarray of int, shape (n,)
        Which candidates of the request.
    positions : ndarray of int64, shape (n, L)
        Row at each place; 0 is the padding.
    counts : ndarray of float32, shape (n, L)
        How often that row stands in the candidate; 0 where a place only fills up.
    """

    candidates: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    counts: npt.NDArray[np.float32]


def plan_runs(
    indices: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], steps: int, chunk: int
) -> Iterator[Run]:
    """Yield the runs that score the candidates of a request, of at most `chunk` candidates each.

    Candidates are taken in order of their length, so that the places of a run are nearly all real. The last
    place of a run is the padding, with the number of padding rows that each candidate has.

    Parameters
    ----------
    indices : ndarray of int, shape (sum of lengths,)
        Primitives of all candidates, one candidate after the other.
    lengths : ndarray of int, shape (candidates,)
        Primitives of each; those after the first `steps` are cropped.
    steps : int
        Rows that the network reads of a candidate, padding included.
    chunk : int
        Candidates a run.
    """
    starts = np.cumsum(lengths) - lengths
    real = np.minimum(lengths, steps)
    order = np.argsort(real, kind="stable")
    for first in range(0, len(order), chunk):
        candidates = order[first : first + chunk]
        of_run = real[candidates]
        longest = int(of_run.max())
        place = np.arange(longest)
        is_real = place < of_run[:, None]
        positions = np.zeros((len(candidates), longest + 1), dtype=np.int64)
        positions[:, :longest][is_real] = 1 + indices[(starts[candidates, None] + place)[is_real]]
        counts = np.empty((len(candidates), longest + 1), dtype=np.float32)
        counts[:, :longest] = is_real
        counts[:, longest] = steps - of_run
        yield Run(candidates, positions, counts)


#: Distinct rows that a block encodes, but for what its last run adds. The encoded rows of a block are handed to
#: each of its runs, some 4 kB a row.
BLOCK_ROWS = 2048


@dataclass(frozen=True, slots=True)
class Block:
    """Runs that share the encoding of their rows.

    Parameters
    ----------
    runs : list of Run
        The runs, in order.
    rows : ndarray of int, shape (n,)
        Rows of the table that they use, ascending.
    place_of : ndarray of int64, shape (rows of the table,)
        Where a row of the table stands in `rows`.
    """

    runs: list[Run]
    rows: npt.NDArray[np.int64]
    place_of: npt.NDArray[np.int64]


def blocks(runs: Iterable[Run], table_rows: int) -> Iterator[Block]:
    """Gather runs into blocks of about `BLOCK_ROWS` distinct rows, which bounds what is held in memory.

    Parameters
    ----------
    runs : iterable of Run
        All runs of a request.
    table_rows : int
        Rows of the request's table.
    """
    gathered: list[Run] = []
    is_used = np.zeros(table_rows, dtype=bool)
    for run in runs:
        gathered.append(run)
        is_used[run.positions] = True
        if np.count_nonzero(is_used) > BLOCK_ROWS:
            yield _block(gathered, is_used)
            gathered = []
            is_used = np.zeros(table_rows, dtype=bool)
    if gathered:
        yield _block(gathered, is_used)


def _block(runs: list[Run], is_used: npt.NDArray[np.bool_]) -> Block:
    place_of = np.cumsum(is_used, dtype=np.int64) - 1
    return Block(runs, np.flatnonzero(is_used), place_of)
