import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import write_linear_version

from tlp_client.logs import LogReader
from tlp_client.primitives import Primitive
from tlp_client.records import Record
from tlp_client.tasks import Task
from tlp_service.cli import main
from tlp_service.evaluation.evaluate import evaluate
from tlp_service.ranking.figures import _SUMMARIES, figures_of, summarise
from tlp_service.ranking.ranking import rank_tasks
from tlp_service.records.importer import import_logs
from tlp_service.records.platform_table import OnePlatform
from tlp_service.records.store import RecordStore
from tlp_service.scoring.scorer import Scorer


def figures(scores, costs, platform="p", workload="w"):
    return figures_of(platform, workload, np.array(scores, dtype=float), np.array(costs, dtype=float))


def test_the_figures_of_a_task_by_hand():
    # labels 1/4, 1, 1/2, 1/8; by score they come as 1/4, 1/2, 1, 1/8
    found = figures([0.9, 0.5, 0.8, 0.1], [4, 1, 2, 8])
    assert (found.candidates, found.best_s, found.top1_s, found.top5_s) == (4, 1, 4, 1)
    assert found.pair_accuracy == 3 / 6
    assert found.kendall_tau == 0
    gained = 1 / 4 + (1 / 2) / math.log2(3) + 1 / 2 + (1 / 8) / math.log2(5)
    best = 1 + (1 / 2) / math.log2(3) + (1 / 4) / 2 + (1 / 8) / math.log2(5)
    assert found.ndcg == pytest.approx(gained / best)
    assert found.label_rmse == pytest.approx(math.sqrt((0.65**2 + 0.5**2 + 0.3**2 + 0.025**2) / 4))
    assert found.random_top1 == pytest.approx((1 / 4 + 1 + 1 / 2 + 1 / 8) / 4)
    assert found.random_top5 == 1


def test_a_perfect_score_and_its_opposite():
    costs = np.array([3.0, 1.0, 2.0, 5.0])
    right, wrong = figures(1 / costs, costs), figures(-1 / costs, costs)
    assert (right.pair_accuracy, right.kendall_tau, right.ndcg, right.top1_s) == (1, 1, 1, 1)
    assert (wrong.pair_accuracy, wrong.kendall_tau, wrong.top1_s) == (0, -1, 5)
    assert wrong.ndcg < 1


def test_equal_scores_gain_nothing():
    found = figures([0.5] * 4, [4, 1, 2, 8])
    assert (found.pair_accuracy, found.top1_s) == (0.5, 8)
    assert math.isnan(found.kendall_tau)
    assert found.ndcg == figures([3, 1, 2, 4], [4, 1, 2, 8]).ndcg  # the slowest first


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=2, max_size=12))
def test_kendalls_tau_is_that_of_its_definition(pairs):
    scores, costs = map(np.array, zip(*pairs, strict=True))
    signs = [
        (np.sign(scores[i] - scores[j]), np.sign(costs[j] - costs[i]))
        for i, j in itertools.combinations(range(len(pairs)), 2)
    ]
    untied = math.sqrt(sum(a != 0 for a, _ in signs) * sum(b != 0 for _, b in signs))
    found = figures(scores, costs).kendall_tau
    if untied == 0:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(sum(a * b for a, b in signs) / untied)


def test_large_tasks_are_counted_in_blocks():
    random = np.random.default_rng(0)
    scores, costs = random.random(1300), random.random(1300) + 0.1
    found, other = figures(scores, costs), rank_tasks([(scores, costs)])
    assert found.pair_accuracy == pytest.approx(other.pair_accuracy)
    assert found.kendall_tau == pytest.approx(2 * other.pair_accuracy - 1)


def test_a_summary_agrees_with_the_ranking_of_training_and_its_intervals_hold_it():
    random = np.random.default_rng(1)
    tasks = [(random.random(20), random.random(20) + 0.1) for _ in range(12)]
    summary = summarise([figures(*task) for task in tasks])
    ranking = rank_tasks(tasks)
    for name in ("top1_mean", "top5_mean", "top1_pooled", "top5_pooled", "pair_accuracy"):
        assert summary[name].value == pytest.approx(getattr(ranking, name))
    assert set(summary) == set(_SUMMARIES)
    assert all(s.low <= s.value <= s.high and s.low < s.high for s in summary.values())
    assert summarise([figures(*task) for task in tasks]) == summary


def record(stage, cost, error_no=0, target="llvm", workload="w"):
    return Record(Task(f'["{workload}"]', target), (Primitive("CI", (stage,)),), (cost,), error_no, 0.1, 1.0)


def test_a_version_is_evaluated_task_by_task(tmp_path):
    """The linear version scores by the stage, so a candidate of a later stage should be faster."""
    scorer = Scorer(write_linear_version(tmp_path))
    right = [("epyc", record(n, 1 / (n + 1))) for n in range(4)]
    wrong = [("k80", record(n, n + 1.0, target="cuda")) for n in range(4)]
    found = evaluate(
        scorer,
        [
            *right,
            *wrong,
            ("epyc", record(3, 1 / 4)),  # the same candidate once more
            ("epyc", record(9, 1e10, error_no=4)),
            ("epyc", record(1, 1.0, workload="small")),
            ("odd", record(1, 1.0, target="hexagon", workload="odd")),
        ],
        min_candidates=2,
    )
    assert [(t.platform, t.candidates, t.kendall_tau) for t in found.tasks] == [
        ("epyc", 4, 1),
        ("k80", 4, -1),
    ]
    assert found.left_out["failed runs"] == 1
    assert found.left_out["tasks of fewer than 2 candidates"] == 2
    assert found.left_out["candidates of a target that the version does not know"] == 1
    assert list(found.platforms) == ["epyc", "k80", "all"]
    document = json.loads(json.dumps(found.to_json()))
    assert document["platforms"]["epyc"]["kendall_tau"]["value"] == 1


@pytest.mark.slow
def test_the_command_on_a_log_and_on_a_part_of_a_store(tmp_path, measured_lines, capsys):
    log = tmp_path / "my.json"
    log.write_text("\n".join([*measured_lines, "{"]))
    arguments = ["evaluate", str(log), "--platform", "epyc-9004-2c", "--json", str(tmp_path / "figures.json")]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "epyc-9004-2c: 10 tasks, 240 candidates" in out
    assert "left out, refused lines" in out
    assert json.loads((tmp_path / "figures.json").read_text())["platforms"]["epyc-9004-2c"]["tasks"] == 10
    store = RecordStore.create(tmp_path / "store")
    import_logs([log], store, OnePlatform("epyc-9004-2c"), processes=1)
    tasks = 0
    for part in ("train", "validation", "test"):
        status = main(["evaluate", str(store.folder), "--part", part])
        out = capsys.readouterr().out
        of_part = int(out.split("epyc-9004-2c: ")[1].split()[0]) if "epyc-9004-2c: " in out else 0
        assert status == (0 if of_part else 1)
        tasks += of_part
    assert tasks == 10
    assert main(["evaluate", str(log), "--part", "test"]) == 2
    assert "only a record store is split" in capsys.readouterr().err


def test_a_log_without_a_valid_record_gives_counts_and_a_status(tmp_path, measured_lines, capsys):
    failed = [json.loads(line) for line in measured_lines[:20]]
    for document in failed:
        document["r"][1] = 4
    (tmp_path / "failed.json").write_text("\n".join(map(json.dumps, failed)))
    assert main(["evaluate", str(tmp_path / "failed.json")]) == 1
    out, err = capsys.readouterr()
    assert "left out, failed runs: 20" in out
    assert "no task with enough candidates to rank" in err
    assert list(LogReader().read_file(tmp_path / "failed.json"))


def test_one_fabricated_cost_moves_no_figure(tmp_path):
    """One value must not change the figures at will: it is left out and reported."""
    scorer = Scorer(write_linear_version(tmp_path))
    honest = [("epyc", record(n, 1 / (n + 1))) for n in range(8)]
    (before,) = evaluate(scorer, honest, min_candidates=2).tasks
    for cost in (1e-9, 1e-6):
        found = evaluate(scorer, [*honest, ("epyc", record(40, cost))], min_candidates=2)
        assert found.tasks == [before]
        assert found.left_out == {"candidates whose cost cannot be a run time": 1}
