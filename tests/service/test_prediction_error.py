"""Prediction error over a window, by hand."""

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlp_service.quality.prediction_error import ROUND_GAP_S, ErrorWindow, Measured, is_drifting


def window_of(measured, capacity=2000):
    window = ErrorWindow(capacity)
    for one in measured:
        window.add(one)
    return window


def round_of(scores, costs, worker="w", workload="t", start=0.0):
    return [
        Measured(worker, workload, s, c, start + n)
        for n, (s, c) in enumerate(zip(scores, costs, strict=True))
    ]


def test_the_figures_of_one_round_by_hand():
    """Speeds are 1, 1/2, 1/4, 1/8; the scores have the two fastest in the wrong order."""
    figures = window_of(round_of([0.6, 0.8, 0.4, 0.2], [1.0, 2.0, 4.0, 8.0])).figures()
    assert (figures.measured, figures.tasks, figures.rounds, figures.failed_share) == (4, 1, 1, 0)
    assert figures.pair_accuracy == pytest.approx(5 / 6)
    assert figures.kendall_tau == pytest.approx(4 / 6)
    assert (figures.top1_regret, figures.top5_regret) == (1.0, 0.0)
    assert figures.calibration == ()  # four cannot be divided into fifths


def test_regret_is_of_rounds_and_a_round_ends_with_a_gap_or_another_worker():
    first = round_of([4, 3, 2, 1], [1.0, 2.0, 3.0, 4.0])  # picks the best
    later = round_of([4, 3, 2, 1], [3.0, 2.0, 1.5, 4.0], start=first[-1].time_s + ROUND_GAP_S + 1)
    other = round_of([1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0], worker="v")
    figures = window_of([*first, *later, *other]).figures()
    assert (figures.tasks, figures.rounds) == (1, 3)
    assert figures.top1_regret == pytest.approx((0 + 1 + 3) / 3)
    together = window_of([*first, *round_of([4, 3, 2, 1], [3.0, 2.0, 1.5, 4.0], start=5.0)]).figures()
    assert (together.rounds, together.top1_regret) == (1, 2.0)  # equal scores: the slower one first


def test_failed_runs_are_counted_and_are_no_slow_ones():
    good = round_of([0.9, 0.8, 0.7, 0.1], [1.0, 2.0, 3.0, 4.0])
    figures = window_of([*good, *round_of([0.99, 0.01], [math.nan, math.nan])]).figures()
    assert figures.failed_share == pytest.approx(2 / 6)
    assert (figures.pair_accuracy, figures.top1_regret) == (1, 0)


def test_labels_rise_with_the_scores_where_those_are_any_good():
    costs = [1.0 / (n + 1) for n in range(10)]
    rising = window_of(round_of([n / 10 for n in range(10)], costs)).figures().calibration
    assert [label for _, label in rising] == pytest.approx([0.15, 0.35, 0.55, 0.75, 0.95])
    assert [score for score, _ in rising] == pytest.approx([0.05, 0.25, 0.45, 0.65, 0.85])


def test_nothing_can_be_said_of_nothing():
    figures = ErrorWindow().figures()
    assert (figures.measured, figures.tasks, figures.rounds) == (0, 0, 0)
    assert math.isnan(figures.pair_accuracy)
    assert math.isnan(figures.failed_share)
    assert not is_drifting(figures, 0.9)
    equal = window_of(round_of([1, 2, 3, 4], [1.0] * 4)).figures()
    assert (equal.tasks, equal.top1_regret) == (0, 0)


def test_drift_is_an_order_that_is_worse_than_at_the_gate_beyond_chance():
    wrong = [m for n in range(6) for m in round_of([1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0], workload=f"t{n}")]
    right = [m for n in range(6) for m in round_of([4, 3, 2, 1], [1.0, 2.0, 3.0, 4.0], workload=f"t{n}")]
    assert is_drifting(window_of(wrong).figures(), 0.7)
    assert not is_drifting(window_of(right).figures(), 0.7)
    assert not is_drifting(window_of(wrong[:16]).figures(), 0.7)  # of four tasks
    assert not is_drifting(window_of(wrong).figures(), math.nan)


def honest_rounds(seed=0):
    """Six rounds of 40 candidates; a score is the speed with some noise."""
    draw = random.Random(seed)
    found = []
    for n in range(6):
        costs = [draw.uniform(1e-3, 1e-2) for _ in range(40)]
        found += round_of([1 / c + draw.gauss(0, 50) for c in costs], costs, workload=f"t{n}")
    return found


def figures_with(cost, worker):
    """Return the figures of honest rounds with one fabricated record in each, which has the worst score."""
    false = [Measured(worker, f"t{n}", 0.0, cost, 40.0) for n in range(6)]
    return window_of([*honest_rounds(), *false]).figures()


@pytest.mark.parametrize("worker", ["evil", "w"])  # under the same name it is part of the honest round
@pytest.mark.parametrize("cost", [1e-9, 2e-8, 1e-6])
def test_a_fabricated_record_moves_no_figure_by_a_tenth(cost, worker):
    """One value must not change the figures of error at will. The regret was a million."""
    honest, found = window_of(honest_rounds()).figures(), figures_with(cost, worker)
    for name in ("pair_accuracy", "pair_accuracy_low", "kendall_tau", "top1_regret", "top5_regret"):
        assert getattr(found, name) == pytest.approx(getattr(honest, name), rel=0.1)
    for (score, label), (score_before, label_before) in zip(
        found.calibration, honest.calibration, strict=True
    ):
        assert (score, label) == pytest.approx((score_before, label_before), rel=0.1)
    assert (honest.outlier_share, found.outlier_share) == (0, pytest.approx(6 / 246))
    assert found.measured == 246


def test_no_round_has_a_regret_of_more_than_ten_times_its_best():
    """A cost that could be real counts, but not without bound."""
    bad = round_of([4, 3, 2, 1], [1.0, 2e-2, 1e-2, 2e-2], worker="v")  # a choice 100 times as slow
    good = round_of([4, 3, 2, 1], [1.0, 2.0, 3.0, 4.0], workload="u")
    assert window_of([*bad, *good]).figures().top1_regret == pytest.approx((9 + 0) / 2)


def test_what_comes_again_is_counted_once_and_the_window_is_bounded():
    """Redelivery must not count again: ten times the bound, twice, the second time from the beginning."""
    stream = [dataclasses.replace(m, time_s=float(n), id=n) for n, m in enumerate(honest_rounds()[:200])]
    window = window_of(stream, capacity=20)
    before = window.figures()
    for again in (stream, stream[-10:], stream[:10], reversed(stream)):
        for measured in again:
            window.add(measured)
        assert len(window) == 20
        assert window.figures() == before
    later = [dataclasses.replace(m, time_s=m.time_s + 1000, id=m.id + 1000) for m in stream]
    for measured in later:
        window.add(measured)
    assert (len(window), len(window._measured._ids)) == (20, 20)


def test_what_comes_late_is_put_where_it_belongs():
    """A batch that another consumer left pending arrives after later ones: the figures are those of the right order."""
    stream = [
        dataclasses.replace(m, id=n)
        for n, m in enumerate(round_of([4, 3, 2, 1] * 3, [1.0, 2.0, 3.0, 4.0] * 3, start=0.0))
    ]
    late = window_of([*stream[4:], *stream[:4]])
    assert late.figures() == window_of(stream).figures()


@given(
    st.lists(
        st.builds(
            Measured,
            worker=st.sampled_from("ab"),
            workload=st.sampled_from("xyz"),
            score=st.floats(0, 1) | st.just(math.nan),
            cost=st.floats(1e-9, 1e3) | st.just(math.nan),
            time_s=st.floats(0, 1e9),
        ),
        max_size=60,
    )
)
def test_any_measurements_have_figures_in_their_range_and_the_window_is_bounded(measured):
    window = window_of(measured, capacity=20)
    assert len(window) == min(20, len(measured))
    figures = window.figures()
    for value in (figures.failed_share, figures.pair_accuracy):
        assert math.isnan(value) or 0 <= value <= 1
    assert math.isnan(figures.top1_regret) or figures.top1_regret >= figures.top5_regret >= 0
