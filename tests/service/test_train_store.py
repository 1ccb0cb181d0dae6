"""``tlp train`` on a record store: its parts, shares, a new platform from a trained version."""

import json

import numpy as np
import pytest

from tlp_client.tasks import canonical_workload_key
from tlp_client.wire.predict import read_predict
from tlp_service.cli import main
from tlp_service.families.lookup import preset_named
from tlp_service.records.reader import part_of_store, stored_records
from tlp_service.records.split import part_of
from tlp_service.records.store import RecordStore
from tlp_service.scoring.scorer import Scorer
from tlp_service.training.dataset import ImportReport, build_sets, valid_records
from tlp_service.training.encoder import best_over_cost
from tlp_service.training.validity import validity_set
from tlp_service.versions.manifest import read_manifest

pytestmark = pytest.mark.training


@pytest.fixture(autouse=True)
def small(monkeypatch):
    sizes = {"width": 16, "blocks": 1, "members": 2, "task_hidden": 8}
    monkeypatch.setattr(type(preset_named("loopnest")), "architecture", sizes)


@pytest.fixture(scope="module")
def store(tmp_path_factory, measured_lines):
    """The committed records as two platforms; on one of them the slow are fast."""
    folder = tmp_path_factory.mktemp("store")
    for name in ("fast", "slow"):
        lines = []
        for line in measured_lines:
            document = json.loads(line)
            if name == "slow" and document["r"][1] == 0:
                document["r"][0] = [1e-4 / cost for cost in document["r"][0]]
            lines.append(json.dumps(document))
        (folder / f"{name}.json").write_text("\n".join(lines))
        arguments = [str(folder / f"{name}.json"), "--store", str(folder / "records"), "--platform", name]
        # With seed 4 each of the three parts holds some of the ten workloads.
        assert main(["records", "import", *arguments, "--seed", "4", "--processes", "1"]) == 0
    return folder / "records"


def train(store, out, capsys, *options):
    status = main(["train", "--records", str(store), "--out", str(out), "--epochs", "2", *options])
    shown = capsys.readouterr()
    assert status == 0, shown.err
    return out / shown.out.strip().rsplit("/", 1)[-1]


def workloads_of(store, part):
    rows = RecordStore(store).read("fast", ("workload_key", "error_no")).to_pylist()
    keys = {row["workload_key"] for row in rows if row["error_no"] == 0}
    seed = RecordStore(store).seed
    return {key for key in keys if part_of(canonical_workload_key(key), seed) == part}


def test_the_parts_are_those_of_the_store(store, tmp_path, capsys):
    folder = train(store, tmp_path, capsys)
    (network,) = read_manifest(folder).networks
    assert network.platforms == ["fast", "slow"]
    for part in ("validation", "test"):
        assert network.trained_on[part]["tasks"] == 2 * len(workloads_of(store, part)) > 0
    assert network.architecture["width"] == 16
    assert set(network.metrics) == {"validation", "test", "test_random"}


def test_only_some_platforms_and_a_share_of_one(store, tmp_path, capsys):
    whole = read_manifest(train(store, tmp_path, capsys)).networks[0]
    one = read_manifest(train(store, tmp_path, capsys, "--without", "slow")).networks[0]
    named = read_manifest(train(store, tmp_path, capsys, "--platform", "fast")).networks[0]
    few = read_manifest(train(store, tmp_path, capsys, "--share", "slow=0.25")).networks[0]
    assert one.platforms == named.platforms == ["fast"]
    assert 2 * one.trained_on["train"]["candidates"] == whole.trained_on["train"]["candidates"]
    assert few.trained_on["train"]["candidates"] == pytest.approx(
        1.25 * one.trained_on["train"]["candidates"], abs=10
    )


def test_a_new_platform_is_learned_from_a_trained_version(store, tmp_path, capsys):
    """It gets the next number and a network of its own, the others stay; what is slow on the old one is fast on it."""
    long = ("--epochs", "30", "--batch", "64", "--learning-rate", "1e-2")
    first = train(store, tmp_path, capsys, "--platform", "slow", *long)
    second = train(store, tmp_path, capsys, "--from", str(first), "--platform", "fast", *long)
    manifest = read_manifest(second)
    general, own = manifest.networks
    assert general == read_manifest(first).networks[0]
    assert (own.serves, own.platforms) == ("fast", ["slow", "fast"])
    assert manifest.training["from"] == first.name
    found = {}
    for version in (first, second):
        out = tmp_path / "figures.json"
        assert main(["evaluate", str(store), "--model", str(version), "--json", str(out)]) == 0
        found[version] = json.loads(out.read_text())["platforms"]
    assert found[first]["slow"]["pair_accuracy"]["value"] > 0.6
    assert found[first]["fast"]["pair_accuracy"]["value"] < 0.4
    assert found[second]["fast"]["pair_accuracy"]["value"] > 0.6
    assert found[second]["slow"] == found[first]["slow"]


def test_each_platform_has_a_head_of_its_own(store, tmp_path, capsys):
    """What is slow on one is fast on the other, so that no one head ranks more than half of the pairs of both."""
    long = ("--epochs", "25", "--batch", "64", "--patience", "25")
    folder = train(store, tmp_path, capsys, "--model", "published-mtl", *long)
    manifest = read_manifest(folder)
    assert [(n.file, n.platforms, n.features) for n in manifest.networks] == [
        ("cpu-fast.onnx", ["fast"], "published"),
        ("cpu-slow.onnx", ["slow"], "published"),
    ]
    out = tmp_path / "figures.json"
    assert main(["evaluate", str(store), "--part", "train", "--model", str(folder), "--json", str(out)]) == 0
    found = json.loads(out.read_text())["platforms"]
    assert min(found[name]["pair_accuracy"]["value"] for name in ("fast", "slow")) > 0.55
    scorer = Scorer(folder)
    steps = [["SP", 0, 0, 64, [16], 1]]

    def score(platform):
        task = {"workload_key": "[]", "target": "llvm", "platform": platform}
        return scorer.score(read_predict({"format": 1, "task": task, "candidates": [steps]})).scores[0]

    assert score("cpu") == score("fast") != score("slow")
    status = main(
        [
            "train",
            "--records",
            str(store),
            "--model",
            "published-mtl",
            "--from",
            str(folder),
            "--out",
            str(tmp_path),
        ]
    )
    assert (status, "a 'published-mtl' is trained from nothing only" in capsys.readouterr().err) == (2, True)


@pytest.fixture(scope="module")
def failing(tmp_path_factory, measured_lines):
    """The committed records, of which those fail that unroll by 512 steps; one candidate ran well once."""
    folder = tmp_path_factory.mktemp("failing")
    lines, failed = [], []
    for line in measured_lines:
        document = json.loads(line)
        if document["r"][1] == 0 and "auto_unroll_max_step$512" in line:
            document["r"] = [[1e10], 4, 0.1, 1]
            failed.append(json.dumps(document))
        lines.append(json.dumps(document))
    again = json.loads(failed[0])
    again["r"] = [[0.5], 0, 0.1, 2]
    (folder / "log.json").write_text("\n".join([*lines, json.dumps(again)]))
    arguments = [str(folder / "log.json"), "--store", str(folder / "records"), "--platform", "box"]
    assert main(["records", "import", *arguments, "--seed", "4", "--processes", "1"]) == 0
    return folder / "records", len(failed)


def test_what_fails_is_learned_beside_what_is_fast(failing, tmp_path, capsys):
    store, failed = failing
    long = ("--epochs", "20", "--batch", "32", "--learning-rate", "1e-2")
    folder = train(store, tmp_path, capsys, *long)
    manifest = read_manifest(folder)
    (network,) = manifest.networks
    assert network.files == ["cpu.onnx", "cpu-validity.onnx"]
    assert manifest.training["records"]["not ranked: failed or implausible run"] == failed + 8
    assert network.validity.metrics["auc"] > 0.6  # of six tasks learned, on one or two that are not
    assert network.validity.metrics["tasks"] > 0
    # What reads a version's scores does not change with what is learned about failures.
    alone = read_manifest(train(store, tmp_path / "again", capsys, *long)).networks[0]
    assert (alone.sha256, alone.validity.sha256) == (network.sha256, network.validity.sha256)
    scorer = Scorer(folder)
    learned = [r for _, r in part_of_store(RecordStore(store), "train")]
    task = max((r.task for r in learned), key=lambda task: sum(r.task == task for r in learned))
    records = [r for r in learned if r.task == task]
    request = {
        "format": 1,
        "task": {"workload_key": task.workload_key, "target": task.target, "platform": "box"},
        "candidates": [*([p.to_json() for p in r.primitives] for r in records), [7]],
        "validity": True,
        "on_invalid": "report",
    }
    prepared = scorer.prepare(read_predict(request))
    work = prepared.validity
    *told, of_no_candidate = scorer.probabilities(prepared, work.network.score_all(work.table, work.plan))
    assert np.isnan(of_no_candidate)
    ran, failed = (
        [p for p, r in zip(told, records, strict=True) if r.is_valid == valid] for valid in (True, False)
    )
    assert 0 < np.mean(failed) < 0.4
    assert 0.6 < np.mean(ran) < 1
    # Trained on, it begins from both networks.
    second = train(store, tmp_path, capsys, "--from", str(folder), "--epochs", "1", "--batch", "64")
    general, own = read_manifest(second).networks
    assert general == network
    assert own.files == ["cpu-own-box.onnx", "cpu-own-box-validity.onnx"]
    assert own.validity.metrics["auc"] > 0.6


def test_failed_runs_are_no_slow_candidates_and_one_that_ran_once_is_valid(failing):
    store, failed = failing
    encoders = {"cpu": preset_named("loopnest").encoder("cpu")}
    records = list(valid_records(stored_records(RecordStore(store)), ImportReport(), with_failed=True))
    whole = build_sets(records, encoders, ImportReport())["cpu"]
    ran = {(r.task.workload, r.primitives) for _, r in records if r.is_valid}
    never = {(r.task.workload, r.primitives) for _, r in records} - ran
    workloads = {workload for workload, _ in never} & {task.workload for task in whole.tasks}
    assert sum(len(task.failed) for task in whole.tasks) == sum(w in workloads for w, _ in never) > failed / 2
    assert max(task.costs.max() for task in whole.tasks) == 0.5
    with_failed = validity_set(whole)
    for task, both in zip(whole.tasks, with_failed.tasks, strict=True):
        assert best_over_cost(both.costs).round(9).tolist() == [1.0] * len(task.costs) + [0.0] * len(
            task.failed
        )
        np.testing.assert_array_equal(
            both.values[len(task.costs) :], task.failed.reshape(-1, both.values.shape[1])
        )


def test_workloads_of_one_log_are_held_together(store, tmp_path, capsys):
    """All are of the same two logs here, so no part is left to validate with."""
    status = main(["train", "--records", str(store), "--out", str(tmp_path), "--split", "source"])
    assert status == 2
    assert "too few to hold some back" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--platform", "k80"], "--platform: the store has no records of k80"),
        (["--without", "k80"], "--without: the store has no records of k80"),
        (["--share", "k80=0.5"], "--share: the store has no records of k80"),
        (["--from", "nowhere"], "no model version at nowhere"),
        (["--model", "published", "--from", "{base}"], "it is a 'loopnest', not a 'published'"),
    ],
)
def test_what_does_not_fit_a_store_is_named(store, tmp_path, capsys, options, message):
    base = train(store, tmp_path, capsys, "--platform", "fast") if "{base}" in options else ""
    options = [option.format(base=base) for option in options]
    assert main(["train", "--records", str(store), "--out", str(tmp_path), *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("share", ["slow", "slow=0", "slow=2", "slow=x"])
def test_a_share_that_is_none_is_refused(store, tmp_path, share, capsys):
    with pytest.raises(SystemExit):
        main(["train", "--records", str(store), "--out", str(tmp_path), "--share", share])
    assert "--share" in capsys.readouterr().err


def test_evaluate_ranks_with_a_version_of_base(store, tmp_path, capsys):
    folder = train(store, tmp_path, capsys)
    out = tmp_path / "figures.json"
    assert main(["evaluate", str(store), "--part", "test", "--model", str(folder), "--json", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert figures["model"] == "loopnest"
    assert set(figures["platforms"]) == {"fast", "slow", "all"}
