"""Prediction error by platform and version, with versions whose scores are known by hand."""

import json
import math

import pytest
from models import write_linear_version

from tlp_client.records import RecordParser
from tlp_service.measurements.stream import Entry
from tlp_service.quality.metrics import QualityCollector, decode_quality
from tlp_service.quality.windows import Quality
from tlp_service.scoring.scorer import Scorer

PARSER = RecordParser()


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """One scores the sum of the stages, the other its negative."""
    folder = tmp_path_factory.mktemp("versions")
    found = [Scorer(write_linear_version(folder / str(n), factor)) for n, factor in enumerate((1.0, -1.0))]
    return {scorer.manifest.version: scorer for scorer in found}


def measured(stage, cost, version, workload="w", platform="epyc", error=0):
    line = json.dumps(
        {
            "i": [[f'["{workload}"]', "llvm", [2, 64, 64, 0, 0, 0, 0, 0], "", 2, []], [[], [["CI", stage]]]],
            "r": [[cost], error, 0.1, 1],
            "v": "v0.6",
        }
    )
    return Entry(f"{workload}-{stage}", line, "host", platform, version), PARSER.parse(line)


def take(quality, records):
    quality.take(records, [float(n) for n in range(len(records))])


def test_each_candidate_is_scored_by_the_version_of_its_search_and_by_the_serving_one(versions):
    rising, falling = versions
    quality = Quality(versions.get, lambda: falling)
    # The higher the stage the faster: `rising` orders all pairs right, `falling` none.
    take(quality, [measured(n, 1.0 / n, rising) for n in range(1, 9)])
    document = quality.document(101.0)
    figures = document["platforms"]["epyc"]
    assert (document["serving"], document["time"]) == (falling, 101.0)
    assert (figures[rising]["pair_accuracy"], figures[falling]["pair_accuracy"]) == (1.0, 0.0)
    assert (figures[rising]["serving"], figures[falling]["serving"]) == (False, True)
    assert (figures[rising]["top1_regret"], figures[falling]["top1_regret"]) == (0.0, 7.0)
    assert (figures[rising]["measured"], figures[rising]["rounds"]) == (8, 1)
    assert figures[rising]["drifting"] is None
    json.dumps(document, allow_nan=False)


def test_failed_runs_are_counted_and_versions_that_are_gone_have_no_figures(versions):
    rising, _ = versions
    quality = Quality(versions.get, lambda: rising)
    take(quality, [measured(n, 1e10, "gone", error=4) for n in range(1, 4)])
    take(quality, [measured(n, 1.0, "", platform="mystery") for n in range(5, 7)])
    platforms = quality.document(2.0)["platforms"]
    assert list(platforms["epyc"]) == [rising]
    assert platforms["epyc"][rising]["failed_share"] == 1
    assert platforms["epyc"][rising]["pair_accuracy"] is None
    assert list(platforms["mystery"]) == [rising]  # scored as any CPU
    assert platforms["mystery"][rising]["measured"] == 2


def test_an_order_worse_than_at_the_gate_drifts(tmp_path, versions):
    rising, falling = versions
    folder = versions[falling].folder
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["training"] = {"gate": {"epyc": 0.8}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    gated = {**versions, falling: Scorer(folder)}
    quality = Quality(gated.get, lambda: falling)
    take(quality, [measured(n, 1.0 / n, rising, workload=f"w{m}") for m in range(6) for n in range(1, 6)])
    figures = quality.document(2.0)["platforms"]["epyc"]
    assert figures[falling]["pair_accuracy_at_gate"] == 0.8
    assert figures[falling]["drifting"] is True
    assert figures[rising]["drifting"] is None


def test_only_what_is_still_in_its_window_is_scored_and_the_figures_are_the_same(versions, monkeypatch):
    rising, _ = versions
    records = [measured(n, 1.0 / n, rising, workload=f"w{n % 3}") for n in range(1, 120)]
    monkeypatch.setattr("tlp_service.quality.windows.WINDOW", 30)
    scored = []
    monkeypatch.setattr(
        versions[rising],
        "score",
        lambda request, **how: scored.append(request) or Scorer.score(versions[rising], request, **how),
    )
    at_once, one_by_one = (Quality(versions.get, lambda: rising) for _ in range(2))
    take(at_once, records)
    told = at_once.document(1.0)
    assert sum(len(request.lengths) for request in scored) == 30
    for n, record in enumerate(records):
        one_by_one.take([record], [float(n)])
        last = one_by_one.document(1.0)
    assert last == told


def test_what_waits_to_be_scored_is_bounded(versions, monkeypatch):
    monkeypatch.setattr("tlp_service.quality.windows._MAX_UNSCORED", 10)
    rising, _ = versions
    quality = Quality(versions.get, lambda: rising)
    for n in range(1, 12):
        take(quality, [measured(n, 1.0 / n, f"unknown-{n}")])
        assert sum(map(len, quality._unscored.values())) <= 10
    assert quality.document(1.0)["platforms"]["epyc"][rising]["measured"] == 11


def test_windows_are_bounded(versions, monkeypatch):
    monkeypatch.setattr("tlp_service.quality.windows._MAX_WINDOWS", 3)
    rising, _ = versions
    quality = Quality(versions.get, lambda: None)
    for n in range(9):
        take(quality, [measured(1, 1.0, rising, platform=f"p{n}")])
    assert list(quality.document(2.0)["platforms"]) == ["p6", "p7", "p8"]
    assert math.isfinite(quality.document(2.0)["time"])
    for platform in ("p6", "p8", "p6", "p9"):
        take(quality, [measured(1, 1.0, rising, platform=platform)])
    assert set(quality.document(3.0)["platforms"]) == {"p8", "p6", "p9"}
    for platform in ("p8", "p6", "p8", "p5"):
        take(quality, [measured(1, 1.0, rising, platform=platform)])
    assert set(quality.document(4.0)["platforms"]) == {"p6", "p8", "p5"}


def counts_of(quality):
    """Return how many measurements each window holds."""
    platforms = quality.document(1.0)["platforms"]
    return {
        (p, v): figures["measured"] for p, versions in platforms.items() for v, figures in versions.items()
    }


@pytest.mark.parametrize("scored_between", [True, False])
def test_what_the_stream_delivers_again_is_counted_once(versions, scored_between):
    """Redelivery must be idempotent in the figures as in the store, also while measurements wait to be scored."""
    rising, falling = versions
    records = [measured(n, 1.0 / n, rising, workload=f"w{n % 3}") for n in range(1, 31)]
    quality = Quality(versions.get, lambda: falling)
    take(quality, records)
    if scored_between:
        before = quality.document(1.0)
    take(quality, records)
    take(quality, records[:7])
    assert counts_of(quality) == {("epyc", rising): 30, ("epyc", falling): 30}
    if scored_between:
        assert quality.document(1.0) == before


def test_what_had_left_its_window_does_not_come_back(versions, monkeypatch):
    """Ten times the bound, delivered twice: the window does not change, and nothing in it is scored again."""
    monkeypatch.setattr("tlp_service.quality.windows.WINDOW", 20)
    rising, _ = versions
    quality = Quality(versions.get, lambda: rising)
    records = [measured(n, 1.0 / n, rising, workload=f"w{n % 3}") for n in range(1, 201)]
    take(quality, records)
    before = quality.document(1.0)
    assert counts_of(quality) == {("epyc", rising): 20}
    monkeypatch.setattr(versions[rising], "score", lambda request, **how: pytest.fail("scored again"))
    for start in (0, 50):
        quality.take(records[start:], [float(n) for n in range(start, 200)])
        assert quality.document(1.0) == before
    assert not quality._unscored


def test_a_task_that_fails_takes_no_other_along(versions, monkeypatch, caplog):
    rising, _ = versions
    scorer, score = versions[rising], versions[rising].score

    def fails(request, **how):
        if "bad" in request.workload_key:
            raise RuntimeError("cannot be scored")
        return score(request, **how)

    monkeypatch.setattr(scorer, "score", fails)
    quality = Quality(versions.get, lambda: rising)
    bad = [measured(n, 1.0 / n, rising, workload="bad") for n in range(1, 6)]
    good = [measured(n, 1.0 / n, rising, workload="good") for n in range(1, 6)]
    take(quality, [*bad, *good])
    figures = quality.document(1.0)["platforms"]["epyc"][rising]
    assert (figures["measured"], figures["tasks"], figures["pair_accuracy"]) == (10, 1, 1.0)
    assert f"no scores of {rising} for a task of epyc" in caplog.text


@pytest.mark.parametrize("gate", [None, [], "x", {"epyc": "high"}, {"epyc": None}])
def test_a_manifest_that_states_no_figure_of_the_gate_says_nothing_of_drift(tmp_path, versions, gate):
    rising, _ = versions
    folder = write_linear_version(tmp_path / "gated", 1.0)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["training"] = {"gate": gate}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    scorer = Scorer(folder)
    quality = Quality(lambda name: scorer, lambda: rising)
    take(quality, [measured(n, 1.0 / n, rising) for n in range(1, 9)])
    figures = quality.document(1.0)["platforms"]["epyc"][rising]
    assert (figures["measured"], figures["drifting"]) == (8, None)


@pytest.mark.parametrize(
    "told",
    [
        b"[" * 100_000,
        b'{"platforms": {"p": {"v": {"serving": true, "measured": 1%s}}}}' % (b"0" * 310),
        b'{"platforms": {"p": {"v": {"serving": true, "measured": -1}}}}',
        b'{"platforms": {"p": {"v": {"serving": true, "measured": 1, "outlier_share": 1e400}}}}',
    ],
)
def test_damaged_figures_are_none(told):
    assert decode_quality(told)["platforms"] == {}
    collector = QualityCollector()
    collector.tell(told)
    assert [sample for gauge in collector.collect() for sample in gauge.samples] == []
