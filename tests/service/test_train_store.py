"""``tlp train`` on a record store: its parts, shares, a new platform from a trained version."""

import json

import pytest

from tlp_client.tasks import canonical_workload_key
from tlp_client.wire.predict import read_predict
from tlp_service.cli import main
from tlp_service.records.split import part_of
from tlp_service.records.store import RecordStore
from tlp_service.scoring.scorer import Scorer
from tlp_service.training.presets import PRESETS
from tlp_service.versions.manifest import read_manifest


@pytest.fixture(autouse=True)
def small(monkeypatch):
    sizes = {"width": 16, "blocks": 1, "members": 2, "task_hidden": 8}
    monkeypatch.setattr(type(PRESETS["base"]), "architecture", sizes)


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
    """The version keeps the numbers of its platforms, the new one gets the next; what is slow on the old one is fast on it."""
    long = ("--epochs", "30", "--batch", "64", "--learning-rate", "1e-2")
    first = train(store, tmp_path, capsys, "--platform", "slow", *long)
    second = train(store, tmp_path, capsys, "--from", str(first), "--platform", "fast", *long)
    manifest = read_manifest(second)
    assert manifest.networks[0].platforms == ["slow", "fast"]
    assert manifest.training["from"] == first.name
    found = {}
    for version in (first, second):
        out = tmp_path / "figures.json"
        assert main(["evaluate", str(store), "--model", str(version), "--json", str(out)]) == 0
        found[version] = json.loads(out.read_text())["platforms"]
    assert found[first]["slow"]["pair_accuracy"]["value"] > 0.6
    assert found[first]["fast"]["pair_accuracy"]["value"] < 0.4
    assert found[second]["fast"]["pair_accuracy"]["value"] > 0.6


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
    status = main(["train", "--records", str(store), "--model", "published-mtl", "--from", str(folder), "--out", str(tmp_path)])  # fmt: skip
    assert (status, "a 'published-mtl' cannot be trained on" in capsys.readouterr().err) == (2, True)


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
        (["--model", "published", "--from", "{base}"], "it is a 'base', not a 'published'"),
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
    assert figures["model"] == "base"
    assert set(figures["platforms"]) == {"fast", "slow", "all"}
