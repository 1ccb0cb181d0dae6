"""A plot of an evaluation: how well the candidates of each platform are ranked, beside random choice.

Importing it takes matplotlib, the extra ``plot``; nothing of pyplot's global state is used.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tlp_service.evaluation.evaluate import Evaluation
from tlp_service.ranking.figures import summarise
from tlp_service.scratch import use_scratch_folder


@contextmanager
def _own_fonts_only() -> Iterator[None]:
    """Keep fontconfig from writing a cache of fonts when the import of matplotlib calls it.

    Plots use the font that is part of matplotlib.
    """
    before = os.environ.get("FONTCONFIG_FILE")
    with tempfile.NamedTemporaryFile("w", prefix="tlp-fonts-", suffix=".conf") as file:
        file.write("<fontconfig/>")
        file.flush()
        os.environ["FONTCONFIG_FILE"] = file.name
        try:
            yield
        finally:
            del os.environ["FONTCONFIG_FILE"]
            if before is not None:
                os.environ["FONTCONFIG_FILE"] = before


# matplotlib would keep its settings and list of fonts in the home folder.
use_scratch_folder("MPLCONFIGDIR")
with _own_fonts_only():
    from matplotlib.figure import Figure

#: title, figure, and that of random choice: its name or its value
_PANELS: tuple[tuple[str, str, str | float], ...] = (
    ("top-1", "top1_mean", "random_top1_mean"),
    ("top-5", "top5_mean", "random_top5_mean"),
    ("pair accuracy", "pair_accuracy", 0.5),
)

_MODEL: dict[str, Any] = {"color": "tab:blue", "markersize": 4}
_CHANCE: dict[str, Any] = {"color": "tab:gray", "markersize": 6}


def write_plot(evaluation: Evaluation, path: Path) -> None:
    """Write the plot of an evaluation as PNG; the same figures give the same bytes.

    Parameters
    ----------
    evaluation : Evaluation
        The evaluation to plot.
    path : Path
        File that gets the picture.
    """
    # Without the name of the software, which would bring its version into the file.
    draw(evaluation).savefig(path, format="png", metadata={"Software": None})


def draw(evaluation: Evaluation) -> Figure:
    """Return the plot: a panel a figure, in it a line a platform with value, 95 % interval and random choice."""
    platforms = evaluation.platforms
    summaries = [summarise(tasks) for tasks in platforms.values()]
    places = range(len(platforms))
    figure = Figure(figsize=(9, 1.6 + 0.3 * len(platforms)), dpi=120, layout="constrained")
    panels = figure.subplots(1, len(_PANELS), sharey=True)
    for panel, (title, name, chance) in zip(panels, _PANELS, strict=True):
        shown = [summary[name] for summary in summaries]
        random = [summary[chance].value if isinstance(chance, str) else chance for summary in summaries]
        panel.hlines(places, [s.low for s in shown], [s.high for s in shown], color="tab:blue")
        panel.plot([s.value for s in shown], places, "o", label="mean over tasks, 95 % interval", **_MODEL)
        panel.plot(random, places, "x", label="random choice", **_CHANCE)
        panel.set_title(title)
        panel.set_xlim(0, 1.02)
        panel.set_xticks([0, 0.25, 0.5, 0.75, 1])
        panel.grid(axis="x", alpha=0.3)
    names = [f"{platform} ({len(tasks)})" for platform, tasks in platforms.items()]
    panels[0].set_yticks(places, labels=names)
    panels[0].set_ylim(max(len(platforms), 1) - 0.5, -0.5)
    figure.suptitle(f"{evaluation.model} {evaluation.version}, platforms with their tasks")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
