"""Training goes on after an interruption, and in several processes, as it would have alone."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from tlp_client.records import RecordParser
from tlp_service.errors import BadSettings, BadVersion
from tlp_service.families.lookup import preset_named
from tlp_service.families.published.network import MultiHeadNetwork, PublishedNetwork
from tlp_service.training import fit as fit_module
from tlp_service.training.dataset import ImportReport, build_sets
from tlp_service.training.export import read_weights
from tlp_service.training.fit import fit, predict_task
from tlp_service.training.parallel import average_gradients

pytestmark = pytest.mark.training


SMALL = {"width": 16, "blocks": 1, "members": 2, "task_hidden": 8}


@pytest.fixture(scope="module")
def records(measured_lines):
    parser = RecordParser()
    return [("epyc", record) for record in map(parser.parse, measured_lines) if record.is_valid]


def set_of(records, preset):
    return build_sets(records, {"cpu": preset_named(preset).encoder("cpu")}, ImportReport())["cpu"]


def settings_of(preset, **changes):
    return dataclasses.replace(preset_named(preset).settings, batch=64, **changes)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(type(preset_named("loopnest")), "architecture", SMALL)


def test_base_learns_what_it_is_shown(records):
    shown = set_of(records, "loopnest")
    settings = settings_of("loopnest", epochs=20)
    fitted = fit(preset_named("loopnest").network(shown, settings, None), shown, shown, settings)
    assert fitted.validation.pair_accuracy > 0.8


@pytest.mark.parametrize("preset", ["loopnest", "published"])
def test_an_interrupted_training_ends_as_one_that_was_not(records, preset, tmp_path, monkeypatch):
    shown = set_of(records, preset)
    settings = settings_of(preset, epochs=4)
    whole = fit(preset_named(preset).network(shown, settings, None), shown, shown, settings)

    ranked = fit_module.rank_set

    def power_cut(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return ranked(*arguments)

    calls = []
    checkpoint = tmp_path / "cpu.safetensors"
    monkeypatch.setattr(fit_module, "rank_set", power_cut)
    with pytest.raises(KeyboardInterrupt):
        fit(
            preset_named(preset).network(shown, settings, None), shown, shown, settings, checkpoint=checkpoint
        )
    again = fit(
        preset_named(preset).network(shown, settings, None), shown, shown, settings, checkpoint=checkpoint
    )
    assert len(calls) == 5  # two epochs, the cut, the two that were left
    for one, other in zip(whole.network.parameters(), again.network.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert again.epoch == whole.epoch


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:1000]), "cannot go on"),
        (lambda path: path.write_text("junk"), "cannot go on"),
        (lambda path: None, "other settings"),
        (lambda path: None, "other records"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_named(records, tmp_path, damage, message):
    shown = set_of(records, "loopnest")
    settings = settings_of("loopnest", epochs=1)
    path = tmp_path / "cpu.safetensors"
    fit(preset_named("loopnest").network(shown, settings, None), shown, shown, settings, checkpoint=path)
    damage(path)
    changed = dataclasses.replace(settings, seed=7) if message == "other settings" else settings
    fewer = dataclasses.replace(shown, tasks=shown.tasks[1:]) if message == "other records" else shown
    with pytest.raises(BadVersion, match=message) as raised:
        fit(preset_named("loopnest").network(shown, settings, None), fewer, shown, changed, checkpoint=path)
    assert str(path) in str(raised.value)


def test_a_task_scores_as_in_the_whole_table(records):
    shown = set_of(records, "loopnest")
    settings = settings_of("loopnest")
    network = preset_named("loopnest").network(shown, settings, None).eval()
    task = shown.tasks[3]
    with torch.no_grad():
        whole = network.score_distinct(
            torch.from_numpy(shown.table),
            torch.from_numpy(task.positions.astype(np.int64)),
            torch.from_numpy(task.values.astype(np.float32)),
        )
    np.testing.assert_allclose(predict_task(network, shown.table, task), whole, rtol=1e-5, atol=1e-6)


def test_a_model_that_nobody_can_train_is_named():
    known = r"model: expected one of loopnest, published, published-mtl, .*got 'magic'"
    with pytest.raises(BadSettings, match=f"^{known}$"):
        preset_named("magic")


def test_a_head_that_took_no_part_has_a_gradient_of_zeros():
    """Processes must agree on what they average, and a step on one must be that of many."""
    network = MultiHeadNetwork(22, heads=2)
    network.score_distinct(
        torch.rand(3, 22), torch.zeros((2, 25), dtype=torch.int64), torch.ones(2, 1)
    ).sum().backward()
    assert network.heads[0][0].weight.grad is None
    average_gradients(network)
    assert not network.heads[0][0].weight.grad.any()
    assert network.heads[1][0].weight.grad.any()


def test_two_processes_train_as_one(measured_lines, tmp_path):
    """With torchrun on CPUs (gloo): the weights go where those of one process with the same batches go."""
    log = tmp_path / "log.json"
    log.write_text("\n".join(measured_lines))
    torch.manual_seed(0)  # that of the commands
    before = PublishedNetwork(22).state_dict()
    weights, accuracy = [], []
    for processes in (1, 2):
        out = tmp_path / f"out{processes}"
        command = ["-m", "tlp_service", "train", "--records", str(log), "--out", str(out)]
        command += ["--model", "published", "--epochs", "2", "--loss", "rank", "--batch", "64"]
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        run = subprocess.run(
            [sys.executable, *(launcher if processes > 1 else []), *command],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        (manifest,) = out.glob("*/manifest.json")
        weights.append(read_weights(manifest.with_name("cpu.onnx")))
        network = json.loads(manifest.read_text())["networks"][0]
        accuracy.append(network["metrics"]["validation"]["pair_accuracy"])
    alone, together = weights
    moved, apart = (
        torch.cat([(other[name] - alone[name]).flatten() for name in alone]).norm()
        for other in (before, together)
    )
    # Adam turns a gradient of rounding errors into a whole step; without averaging it is 0.77.
    assert apart < 0.3 * moved
    assert accuracy[0] == pytest.approx(accuracy[1], abs=0.03)
