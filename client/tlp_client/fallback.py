"""What scores candidates while the service cannot: a model of the tuner's own, or chance."""

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

#: Minimum number of measured candidates, from which a model is better than chance (the default of Ansor's own is 100).
_MIN_MEASURED = 64
#: Maximum number of measured candidates that are remembered; training takes seconds by then.
_MAX_REMEMBERED = 8192


class LocalModel(Protocol):
    """A cost model of a tuner. It keeps all that it was taught, as those of TVM do."""

    def update(self, measured: list[Any], results: list[Any]) -> None:
        """Learn from what was measured."""

    def predict(self, task: Any, candidates: Sequence[Any]) -> npt.ArrayLike:
        """Return one score per candidate; higher is faster, not finite for one that cannot be scored."""


class LocalFallback:
    """Scores with what this worker has measured itself.

    The model is trained when it is first needed, not while the service answers. If its library does not import, or less
    than `_MIN_MEASURED` candidates were measured, the scores are random, as those of Ansor's own model are then.

    Parameters
    ----------
    make_model : callable or None
        Returns a new model, or raises ImportError if its library is missing. None for random scores.
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
        """Remember what was measured, and the result of each."""
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
            # It keeps all that it was taught, and trains on all of it each time: a long outage would be ever slower.
            self._model = make_model()
            self._taught, self._new = 0, len(self._measured)
        if self._new:
            newest = list(islice(reversed(self._measured), self._new))[::-1]
            measured, results = zip(*newest, strict=True)
            self._model.update(list(measured), list(results))
            self._taught, self._new = self._taught + self._new, 0
        scores = np.asarray(self._model.predict(task, candidates), dtype=np.float64)
        # Tuners clamp negative scores to 0, so only a candidate that can't be scored (-inf of Ansor) may have 0.
        finite: list[float] = np.where(np.isfinite(scores), np.maximum(scores, 1e-6), 0.0).tolist()
        return finite
