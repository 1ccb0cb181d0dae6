"""``tlp train`` end to end, on committed records."""

import json

import numpy as np
import pytest

from tlp_client.records import RecordParser
from tlp_service.cli import main
from tlp_service.families.lookup import preset_named
from tlp_service.scoring.scorer import Scorer
from tlp_service.training.dataset import ImportReport, build_sets
from tlp_service.training.fit import FitSettings, fit, rank_set
from tlp_service.versions.manifest import read_manifest

pytestmark = pytest.mark.training


@pytest.fixture
def training_set(measured_lines):
    parser = RecordParser()
    records = (("epyc", record) for record in map(parser.parse, measured_lines) if record.is_valid)
    return build_sets(records, {"cpu": preset_named("published").encoder("cpu")}, ImportReport())["cpu"]


def trained(training_set, settings, preset="published", **options):
    network = preset_named(preset).network(training_set, settings, None)
    return fit(network, training_set, training_set, settings, **options)


def test_training_learns_what_it_is_shown(training_set):
    """Trained and tested on the same tasks, the network must rank them far better than chance."""
    before = trained(training_set, FitSettings(epochs=1, batch=64))
    after = trained(training_set, FitSettings(epochs=25, batch=64, patience=25))
    assert after.validation.pair_accuracy > max(0.65, before.validation.pair_accuracy)


@pytest.mark.parametrize("choice", [{"loss": "mse"}, {"pairs": "batch"}, {"max_candidates": 8}])
def test_every_way_to_train_runs_and_is_repeatable(training_set, choice):
    settings = FitSettings(epochs=2, batch=64, seed=5, **choice)
    first, second = (trained(training_set, settings) for _ in range(2))
    for a, b in zip(first.network.parameters(), second.network.parameters(), strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_training_stops_when_held_out_tasks_stop_getting_better(training_set):
    settings = FitSettings(epochs=50, batch=256, patience=2, learning_rate=0.0)
    fitted = trained(training_set, settings)
    assert fitted.epoch == 1  # nothing is learned at rate 0, so the first epoch stays the best
    assert rank_set(fitted.network, training_set) == fitted.validation


def test_the_command_writes_a_version_that_serves(tmp_path, measured_lines, cuda_lines, capsys, caplog):
    log = tmp_path / "log.json"
    gpu = []
    for n, line in enumerate(cuda_lines):
        document = json.loads(line)
        document["r"] = [[0.001 * (1 + n % 10)], 0, 0.1, n]
        gpu.append(json.dumps(document))
    log.write_text("\n".join([*measured_lines, *gpu, "a broken line"]))
    status = main(["train", "--records", str(log), "--out", str(tmp_path / "out"), "--epochs", "1"])
    folder = capsys.readouterr().out.strip()
    assert status == 0
    manifest = read_manifest(tmp_path / "out" / folder.rsplit("/", 1)[-1])
    assert [n.platform_kind for n in manifest.networks] == ["cpu", "gpu"]
    assert [n.platforms for n in manifest.networks] == [["cpu"], ["gpu"]]
    assert manifest.training["records"]["left out: refused line, not JSON"] == 1
    assert "log.json:279: not JSON" in caplog.text
    cpu = manifest.networks[0]
    assert sum(cpu.trained_on[part]["tasks"] for part in ("train", "validation", "test")) == 10
    Scorer(tmp_path / "out" / manifest.version)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--records", "missing.json"], "no such file or directory: missing.json"),
        (["--records", "empty.json"], "no task with two or more valid records; no records at all"),
        (["--records", "failed.json"], "not ranked: failed or implausible run: 3"),
        (["--records", "failed.json", "--platforms", "bad.csv"], "bad.csv:2: "),
        (["--records", "failed.json", "--platforms", "missing.csv"], "missing.csv: No such file"),
        (["--records", "few.json", "--platform", "my cpu!"], "platform: 1 to 128 letters"),
        (["--records", "few.json", "--platform", "gpu"], "platform: 'gpu' means any gpu"),
        (["--records", "few.json", "--device", "abacus"], "--device abacus: "),
        (["--records", "few.json", "--out", "few.json"], "--out few.json: File exists"),
        (["--records", "few.json"], "1 workloads are too few to hold some back"),
    ],
)
def test_what_cannot_be_trained_on_is_one_line_and_status_2(
    tmp_path, monkeypatch, capsys, arguments, message, measured_lines
):
    monkeypatch.chdir(tmp_path)
    failed = [line for line in measured_lines if json.loads(line)["r"][1] != 0]
    (tmp_path / "failed.json").write_text("\n".join(failed[:3]))
    (tmp_path / "empty.json").touch()
    (tmp_path / "few.json").write_text("\n".join(measured_lines[:9]))
    (tmp_path / "bad.csv").write_text("folder,where\na,b\n")
    assert main(["train", "--out", "out", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
