"""The two pictures of a run of the demo: its tuning curves, and measured speed by score.

The same figures give the same bytes, so a test can compare a picture with the JSON beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib

# Imported from there, since that module keeps matplotlib from writing into the home folder.
from tlp_service.evaluation.plot import Figure

_SIZE = (4.6, 3.2)
#: Text stays text, and ids are made of contents instead of drawn at random.
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "tlp", "font.size": 9}


def write_pictures(document: dict[str, Any], folder: Path) -> None:
    """Write ``tuning.svg`` and ``prediction_error.svg``.

    Parameters
    ----------
    document : dict
        What ``scripts/demo --json`` wrote.
    folder : Path
        Where the pictures go; made if need be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in (("tuning", _tuning), ("prediction_error", _prediction_error)):
        with matplotlib.rc_context(_STYLE):
            figure = Figure(figsize=_SIZE, layout="constrained")
            draw(figure.subplots(), document["figures"])
            figure.text(0.01, -0.08, origin(document), fontsize=6, color="tab:gray")
            figure.savefig(
                folder / f"{name}.svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight"
            )


def origin(document: dict[str, Any]) -> str:
    """Return in words which run a picture is of."""
    trials = document["figures"]["arguments"]["trials"]
    run = f"make demo, {trials} trials, {document['date']}, version {document['version']}"
    return f"{run}\n{document['machine']}"


def best_so_far(costs_ms: Sequence[float | None]) -> Iterator[float]:
    """Return the lowest cost up to each measured candidate; failed runs change nothing."""
    best = math.inf
    for cost in costs_ms:
        best = min(best, math.inf if cost is None else cost)
        yield best


def _tuning(axes: Any, figures: dict[str, Any]) -> None:
    for operator in figures["operators"]:
        speedups = [operator["untuned_ms"] / best for best in best_so_far(operator["costs_ms"])]
        axes.plot(range(1, len(speedups) + 1), speedups, label=operator["operator"])
    axes.axvline(_random(figures), color="tab:gray", linestyle=":", label="end of the random candidates")
    axes.set_xlabel("measured candidates")
    axes.set_ylabel("speed of the best so far ÷ untuned")
    axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def _random(figures: dict[str, Any]) -> int:
    """Return how many candidates of each operator were measured at random before the search."""
    first = figures["operators"][0]
    return int(first["measured"] - first["trials"])


def _prediction_error(axes: Any, figures: dict[str, Any]) -> None:
    """Draw how fast the candidates of each fifth really were.

    Scores are ordinal, so the fifths stand at equal distances.
    """
    for versions in figures["quality"].values():
        for version, found in versions.items():
            if found["calibration"]:
                labels = [label for _, label in found["calibration"]]
                text = f"{version}\npair accuracy {found['pair_accuracy']:.2f}, {found['measured']} measured"
                axes.plot(range(1, len(labels) + 1), labels, "o-", label=text)
    axes.set_xticks(range(1, 6), labels=["1\nlowest", "2", "3", "4", "5\nhighest"])
    axes.set_xlabel("fifth of the measured candidates, by score")
    axes.set_ylabel("speed ÷ fastest of the task, mean")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
