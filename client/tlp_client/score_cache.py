"""A cache of scores, so that a worker does not request them twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

#: Bytes per entry beside its text: the key, the score and the slot in the table.
_ENTRY_BYTES = 200


class ScoreCache:
    """Scores by version, task and candidate; the oldest are evicted first. Thread-safe.

    A search keeps its best candidates from one generation to the next, and requests their scores each time.

    Parameters
    ----------
    max_bytes : int
        Approximate maximum memory of all entries.
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
        """Return the cached scores of candidates, by text.

        Parameters
        ----------
        version : str
            Model version. Scores of other versions are never returned.
        task : str
            Key of the task. It is needed because candidates of different tasks may have equal texts.
        texts : iterable of str
            The candidates.
        """
        scores = self._scores
        with self._lock:
            return {text: score for text in texts if (score := scores.get((version, task, text))) is not None}

    def add(self, version: str, task: str, texts: Sequence[str], scores: Sequence[float]) -> None:
        """Add the scores of candidates of one version and task."""
        with self._lock:
            for text, score in zip(texts, scores, strict=True):
                if (version, task, text) not in self._scores:
                    self._bytes += len(text) + _ENTRY_BYTES
                self._scores[version, task, text] = score
            while self._bytes > self._max_bytes:
                (_, _, oldest), _ = self._scores.popitem(last=False)
                self._bytes -= len(oldest) + _ENTRY_BYTES
