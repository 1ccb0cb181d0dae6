"""Scores that this worker has already, so that it need not ask again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

#: Bytes of an entry beside its text: key, score, its place in the table.
_ENTRY_BYTES = 200


class ScoreCache:
    """Scores by version, task and candidate, the oldest dropped first. Thread-safe.

    A search keeps its best candidates from one generation to the next, and has them scored again with each.

    Parameters
    ----------
    max_bytes : int
        About what all entries may take.
    """

    def __init__(self, max_bytes: int = 32 << 20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._scores: OrderedDict[tuple[str, str, str], float] = (
            OrderedDict()
        )  # a dict is slow to find its oldest
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._scores)

    def find(self, version: str, task: str, texts: Iterable[str]) -> dict[str, float]:
        """Return the scores that are known of some candidates.

        Parameters
        ----------
        version : str
            Model version; scores of another are never returned.
        task : str
            Identifies the task; the texts of two candidates of different tasks may be equal.
        texts : iterable of str
            The candidates.
        """
        scores = self._scores
        with self._lock:
            return {text: score for text in texts if (score := scores.get((version, task, text))) is not None}

    def add(self, version: str, task: str, texts: Sequence[str], scores: Sequence[float]) -> None:
        """Remember scores."""
        with self._lock:
            for text, score in zip(texts, scores, strict=True):
                if (version, task, text) not in self._scores:
                    self._bytes += len(text) + _ENTRY_BYTES
                self._scores[version, task, text] = score
            while self._bytes > self._max_bytes:
                (_, _, oldest), _ = self._scores.popitem(last=False)
                self._bytes -= len(oldest) + _ENTRY_BYTES
