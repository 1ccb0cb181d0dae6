"""Local fallback scores for outages: the tuner's own model, or random scores."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)

#: Minimum number of measured candidates before the local model is used. With fewer, random scores are as
#: good. The default of Ansor's own model is 100.
_MIN_MEASURED = 64
#: Maximum number of measured candidates in memory. Training on that many takes seconds.
_MAX_REMEMBERED = 8192


class LocalModel(Protocol):
    """A tuner's own cost model. It keeps all of its training data, as TVM's models do."""

    def update(self, measured: list[Any], results: list[Any]) -> None:
        """Train on measured candidates and their results."""

    def predict(self, task: Any, candidates: Sequence[Any]) -> npt.ArrayLike:
        """Return one score per candidate, higher is faster; not finite if a candidate cannot be scored."""


class LocalFallback:
    """Scores candidates with a model trained on this worker's own measurements.

    The model is trained when the service first fails to answer, not before. The scores are random, as in
    Ansor, if the model's library is missing or fewer than `_MIN_MEASURED` candidates were measured.

    Parameters
    ----------
    make_model : callable or None
        Returns a new model, or raises ImportError if its library is missing. With None, all scores are
        random.
    """

    def __init__(self, make_model: Callable[[], LocalModel] | None) -> None:
        self._lock = threading.Lock()
        self._make_model = make_model
        self._measured: deque[tuple[Any, Any]] = deque(maxlen=_MAX_REMEMBERED)
        self._new = 0  # measured pairs that the model has not seen
        self._taught = 0  # measured pairs that the model keeps
        self._model: Any = None
        self._has_warned = False
        self._random = np.random.default_rng()

    def learn(self, measured: Sequence[Any], results: Sequence[Any]) -> None:
        """Store measured candidates and their results for training."""
        with self._lock:
            self._measured.extend(zip(measured, results, strict=True))
            self._new = min(self._new + len(measured), _MAX_REMEMBERED)

    def predict(self, task: Any, candidates: Sequence[Any]) -> list[float]:
        """Return one finite score per candidate; 0 for one that the model cannot score."""
        with self._lock:
            if self._make_model is not None and len(self._measured) >= _MIN_MEASURED:
                try:
                    return self._predict_by(self._make_model, task, candidates)
                except ImportError:
                    if not self._has_warned:
                        log.warning("xgboost does not import, so the local scores are random")
                    self._has_warned = True
                except Exception:  # a search must not end because a fallback failed
                    log.exception("the local model failed, falling back to random scores")
            scores: list[float] = self._random.uniform(size=len(candidates)).tolist()
            return scores

    def _predict_by(
        self, make_model: Callable[[], LocalModel], task: Any, candidates: Sequence[Any]
    ) -> list[float]:
        if self._model is None or self._taught + self._new > 2 * _MAX_REMEMBERED:
            # A model retrains on all of its data each time, so a long outage would get slower and slower.
            self._model = make_model()
            self._taught, self._new = 0, len(self._measured)
        if self._new:
            newest = list(islice(reversed(self._measured), self._new))[::-1]
            measured, results = zip(*newest, strict=True)
            self._model.update(list(measured), list(results))
            self._taught, self._new = self._taught + self._new, 0
        scores = np.asarray(self._model.predict(task, candidates), dtype=np.float64)
        # Tuners clamp negative scores to 0, so 0 is reserved for candidates that cannot be scored (-inf in
        # Ansor).
        finite: list[float] = np.where(np.isfinite(scores), np.maximum(scores, 1e-6), 0.0).tolist()
        return finite
