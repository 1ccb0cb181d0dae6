"""The plot of an evaluation shows the figures of its table."""

import subprocess
import sys

import numpy as np
import pytest

from tlp_service.cli import main
from tlp_service.evaluation.evaluate import Evaluation
from tlp_service.evaluation.plot import draw, write_plot
from tlp_service.ranking.figures import figures_of, summarise


def tasks_of(platform, count, seed=0):
    random = np.random.default_rng(seed)
    return [figures_of(platform, f"w{n}", random.random(20), random.random(20) + 0.1) for n in range(count)]


@pytest.fixture
def evaluation():
    return Evaluation("published", "published-1", [*tasks_of("v100", 3), *tasks_of("epyc", 5, seed=1)])


def size_of(path):
    """Width and height of a PNG."""
    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")


def test_each_panel_shows_value_interval_and_random_choice_of_each_platform(evaluation):
    figure = draw(evaluation)
    panels = figure.axes
    assert [panel.get_title() for panel in panels] == ["top-1", "top-5", "pair accuracy"]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["epyc (5)", "v100 (3)", "all (8)"]
    summaries = [summarise(tasks) for tasks in evaluation.platforms.values()]
    for panel, name in zip(panels, ("top1_mean", "top5_mean", "pair_accuracy"), strict=True):
        values, random = (line.get_xdata() for line in panel.lines)
        (intervals,) = panel.collections
        assert list(values) == [summary[name].value for summary in summaries]
        if name == "pair_accuracy":
            assert list(random) == [0.5, 0.5, 0.5]
        else:
            assert list(random) == [summary[f"random_{name}"].value for summary in summaries]
        ends = [[tuple(end) for end in segment] for segment in intervals.get_segments()]
        shown = [(summary[name].low, summary[name].high) for summary in summaries]
        assert ends == [[(low, n), (high, n)] for n, (low, high) in enumerate(shown)]
    assert "published published-1" in figure.get_suptitle()


def test_the_same_figures_give_the_same_picture(tmp_path, evaluation):
    for name in ("a.png", "b.png"):
        write_plot(evaluation, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert size_of(tmp_path / "a.png") == (1080, 300)


@pytest.mark.parametrize("tasks", [[], [figures_of("epyc", "w", np.ones(2), np.ones(2))]])
def test_figures_that_there_are_none_of_are_not_shown(tmp_path, tasks):
    write_plot(Evaluation("published", "published-1", tasks), tmp_path / "plot.png")
    assert size_of(tmp_path / "plot.png")[0] == 1080


def test_the_command_writes_it(tmp_path, measured_lines):
    (tmp_path / "log.json").write_text("\n".join(measured_lines))
    assert main(["evaluate", str(tmp_path / "log.json"), "--plot", str(tmp_path / "figures.png")]) == 0
    assert size_of(tmp_path / "figures.png") == (1080, 228)


@pytest.mark.slow
def test_without_matplotlib_the_command_says_what_to_install(tmp_path):
    """And that at once: the log, which does not exist, is not looked for."""
    code = (
        "import sys; sys.modules['matplotlib'] = None; from tlp_service.cli import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "evaluate", str(tmp_path / "none.json"), "--plot", "x.png"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "install 'tlp-service[plot]'" in done.stderr
