"""The map from a network's raw scores to served ones.

Ansor clamps negative scores to 0 and then draws parents in proportion to their scores. If all scores of a
batch are equal, it always chooses the first state. Served scores are therefore positive and spread: a
softsign around the median of the training set.

    score = (1 + x / (1 + |x|)) / 2    with    x = (raw - center) / scale

The map is increasing, positive and at most 1. Its tails fall as slowly as 1/x, unlike those of the logistic
function, so raw scores far outside the training set's range still differ in double precision.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tlp_service.versions.manifest import ScoreMap


def fit_score_map(raw: npt.NDArray[np.floating]) -> ScoreMap:
    """Return the map that puts the median at 1/2 and the quartiles near 1/3 and 2/3."""
    low, center, high = np.quantile(np.asarray(raw, dtype=np.float64), [0.25, 0.5, 0.75])
    scale = float(max(high - low, 1e-6))
    return ScoreMap(function="softsign", center=float(center), scale=scale)


def map_scores(raw: npt.NDArray[np.floating], score_map: ScoreMap) -> npt.NDArray[np.float64]:
    """Return the served scores of raw ones, in (0, 1]; NaN where `raw` is not finite."""
    x = (np.asarray(raw, dtype=np.float64) - score_map.center) / score_map.scale
    tail = 0.5 / (1.0 + np.abs(x))  # the same function, without 1 - 1 where x is far below 0
    return np.where(np.isfinite(x), np.where(x < 0, tail, 1.0 - tail), np.nan)
