"""What scores candidates while the service cannot: Ansor's own XGBoost model, or chance."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

log = logging.getLogger(__name__)

#: measured candidates from which Ansor's model is better than chance (its own default is 100)
_WARM_UP = 64
#: measured candidates remembered; training takes seconds by then
_REMEMBERED = 8192


class LocalFallback:
    """Scores with what this worker has measured itself. Needs TVM.

    The model is trained when it is first needed, not while the service answers. Where xgboost does not import, or less
    than `_WARM_UP` candidates were measured, the scores are random, as those of Ansor's own model are then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._measured: deque[tuple[Any, Any]] = deque(maxlen=_REMEMBERED)
        self._new = 0  # measured pairs that the model has not seen
        self._taught = 0  # measured pairs that the model keeps
        self._model: Any = None
        self._has_warned = False
        self._random = np.random.default_rng()

    def learn(self, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Remember ``(MeasureInput, MeasureResult)`` pairs."""
        with self._lock:
            self._measured.extend(zip(inputs, results, strict=True))
            self._new = min(self._new + len(inputs), _REMEMBERED)

    def predict(self, task: Any, states: Sequence[Any]) -> list[float]:
        """Return one finite score a state; 0 for a state that can't be lowered."""
        with self._lock:
            if len(self._measured) >= _WARM_UP:
                try:
                    return self._predict_by_model(task, states)
                except ImportError:
                    if not self._has_warned:
                        log.warning("xgboost does not import, so the local scores are random")
                    self._has_warned = True
                except Exception:  # a search must not end because a fallback failed
                    log.exception("Ansor's XGBoost model failed, falling back to random scores")
            scores: list[float] = self._random.uniform(size=len(states)).tolist()
            return scores

    def _predict_by_model(self, task: Any, states: Sequence[Any]) -> list[float]:
        if self._model is None or self._taught + self._new > 2 * _REMEMBERED:
            from tvm.auto_scheduler.cost_model import XGBModel

            # It keeps all that it was taught, and trains on all of it each time: a long outage would be ever slower.
            self._model = XGBModel(verbose_eval=0, num_warmup_sample=0)
            self._taught, self._new = 0, len(self._measured)
        if self._new:
            newest = list(islice(reversed(self._measured), self._new))[::-1]
            inputs, results = zip(*newest, strict=True)
            self._model.update(list(inputs), list(results))
            self._taught, self._new = self._taught + self._new, 0
        scores = np.asarray(self._model.predict(task, states), dtype=np.float64)
        # Ansor clamps negative scores to 0, so only a state that can't be lowered (-inf) may have 0.
        finite: list[float] = np.where(np.isfinite(scores), np.maximum(scores, 1e-6), 0.0).tolist()
        return finite
