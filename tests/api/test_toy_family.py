"""A model family from outside.

This file alone adds one, which is trained, exported, published, activated and served.
"""

import importlib.metadata
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from serving import Server, request_of

from tlp_client.wire.predict import PredictRequest, ScoreRequest
from tlp_service.errors import BadSettings, BadVersion, InvalidBody
from tlp_service.families.family import Family
from tlp_service.families.lookup import ENTRY_POINTS, _others, family_named, preset_named
from tlp_service.inference.inputs import Inputs
from tlp_service.inference.plan import Plan, Run
from tlp_service.inference.score_map import map_scores
from tlp_service.scoring.scorer import Scorer
from tlp_service.settings import shipped_model
from tlp_service.versions.manifest import read_manifest
from tlp_service.versions.registry import Registry

HERE = Path(__file__).resolve().parent
RECORDS = HERE.parent / "data" / "measured.json"
NAME = "toy"


class CountPlan(Plan):
    """The candidates of a request by their numbers of primitives."""

    def __init__(self, counts):
        self.counts = np.asarray(counts, dtype=np.float32)[:, None]

    @property
    def candidates(self):
        return len(self.counts)

    @property
    def nbytes(self):
        return self.counts.nbytes

    @property
    def mean_length(self):
        return 1

    def run(self, first, count):
        counts = self.counts[first : first + count]
        positions = np.zeros((len(counts), 1), dtype=np.int64)
        return Run(np.arange(first, first + len(counts)), positions, counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(ScoreRequest):
    """A kind of request that no other family reads: candidates by their numbers of primitives."""

    counts: list[int]

    @property
    def candidates(self):
        return len(self.counts)


def _counts_of(request):
    return request.counts if isinstance(request, Counted) else request.lengths


class Toy(Family):
    """Scores a candidate by its number of primitives."""

    name = NAME
    requests = (PredictRequest, Counted)
    models = (NAME,)

    def inputs_in_steps(self, asked):
        for one in asked:
            yield one.request.candidates
        return [self._inputs(_counts_of(one.request)) for one in asked]

    def probe(self, network, candidates):
        return self._inputs(np.arange(candidates))

    def empty(self, network):
        return self._inputs([0, 0])

    def check(self, network, row_width, value_width):
        self.check_sizes(network, (row_width, value_width or 0), (1, 1))

    def preset(self, model):
        return _preset()

    def _inputs(self, counts):
        return Inputs(np.ones((1, 1), dtype=np.float32), CountPlan(counts))


def _preset():
    """Return how it is trained. Within a function, since a server has no torch."""
    import torch

    from tlp_service.training.encoder import Encoder
    from tlp_service.training.export import read_weights
    from tlp_service.training.fit import FitSettings
    from tlp_service.training.form import CANDIDATES, KNOWN, NEW, Form
    from tlp_service.training.network import ExportableNetwork
    from tlp_service.training.preset import Preset

    class ToyForm(torch.nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, rows, tasks, positions, counts):
            return rows * 1.0, self.network(counts) * tasks.index_select(0, positions[:, 0])[:, 0]

    class ToyNetwork(ExportableNetwork):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(1, 1)
            self.architecture = {"lines": 1}

        def forward(self, counts):
            return self.line(counts)[:, 0]

        def score_distinct(self, table, positions, values):
            return self(values)

        def form(self, row_width, value_width):
            places = torch.zeros((3, 1), dtype=torch.int64)
            return Form(
                ToyForm(ToyNetwork()),
                ("tasks",),
                "counts",
                (torch.ones(5, row_width), torch.ones(7, 1), places, torch.ones(3, value_width)),
                ({0: NEW}, {0: KNOWN}, {0: CANDIDATES}, {0: CANDIDATES}),
            )

        def compare(self, exported, sample, rows):
            positions, counts = sample.positions[rows].astype(np.int64), sample.values[rows].astype("f4")
            expected = self(torch.from_numpy(counts)).numpy()
            return expected, exported.score(exported.encode(sample.table), positions, counts)

    class ToyEncoder(Encoder):
        def begin(self, primitives, tasks):
            self.table = np.ones((1, 1), dtype=np.float32)

        def encode(self, task, indices, lengths):
            return np.zeros((len(lengths), 1), dtype=np.int32), lengths[:, None].astype(np.float16)

    class ToyPreset(Preset):
        name = features = NAME
        settings = FitSettings(loss="combined", epochs=2, learning_rate=0.1)

        def encoder(self, kind, known=()):
            return ToyEncoder()

        def network(self, train, settings, source):
            torch.manual_seed(settings.seed)
            network = ToyNetwork()
            if source is not None:
                network.load_state_dict(read_weights(source[1]))
            return network

        def shape(self, kind):
            return 1, 1

    return ToyPreset()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a distribution that declares the family, for this process and its children."""
    described = tmp_path / "site" / "toy_family-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-family\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{NAME} = {Path(__file__).stem}:Toy\n")
    folders = [str(described.parent), str(HERE), str(HERE.parent)]
    monkeypatch.setenv("PYTHONPATH", ":".join(folders))
    monkeypatch.syspath_prepend(str(described.parent))
    _others.cache_clear()
    yield
    _others.cache_clear()


@pytest.mark.training
def test_a_family_of_another_package_is_trained_exported_activated_and_served(installed, tmp_path):
    train = [sys.executable, "-m", "tlp_service", "train", "--model", NAME, "--records", str(RECORDS)]
    train += ["--platform", "epyc", "--kinds", "cpu", "--out", str(tmp_path / "out")]
    version = Path(subprocess.run(train, check=True, capture_output=True, text=True).stdout.strip())
    manifest = read_manifest(version)
    (network,) = manifest.networks
    assert (manifest.model, network.features) == (NAME, NAME)
    with Server(sys.executable, tmp_path / "data", admin_key="key") as server:
        Registry(tmp_path / "data" / "models").publish(version)
        status, answer = server.post(
            "/v1/registry/activate", {"version": version.name}, Authorization="Bearer key"
        )
        assert status == 200, answer
        counts = [3, 0, 40, 7]
        asked = request_of([[["CI", n] for n in range(count)] for count in counts])
        status, answer = server.post("/v1/predict", {**asked, "version": version.name})
        assert (status, answer["model"], answer["version"]) == (200, NAME, version.name)
    counted = Counted(target="llvm", platform=None, version=None, report_invalid=True, counts=counts)
    assert Scorer(version).score(counted).scores == pytest.approx(answer["scores"], abs=1e-6)
    with pytest.raises(InvalidBody, match="does not read a Counted; ask for a version that does") as refused:
        Scorer(shipped_model()).score(counted)
    assert refused.value.code == "unsupported"
    from tlp_service.training.export import read_weights

    slope, offset = (
        float(weight.flatten()[0])
        for _, weight in sorted(read_weights(version / network.file).items(), reverse=True)
    )
    expected = map_scores(np.array(counts, dtype=np.float32) * slope + offset, network.score_map)
    assert answer["scores"] == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_version_of_a_family_that_is_not_installed_names_those_that_are(tmp_path):
    with pytest.raises(BadVersion, match=r"features: expected one of loopnest, published, .*got 'toy'"):
        family_named(NAME)
    with pytest.raises(
        BadSettings, match=r"model: expected one of loopnest, published, published-mtl, .*got 'toy'"
    ):
        preset_named(NAME)


def test_the_name_of_an_earlier_release_is_read(installed):
    assert family_named("base") is family_named("loopnest")
    assert preset_named("base").is_of("loopnest")
    assert family_named(NAME).name == NAME


def test_a_family_that_does_not_load_stops_no_other(installed, monkeypatch, caplog):
    points = importlib.metadata.EntryPoints(
        [
            importlib.metadata.EntryPoint("broken", "no_such_module:Family", ENTRY_POINTS),
            *importlib.metadata.entry_points(group=ENTRY_POINTS),
        ]
    )
    monkeypatch.setattr("tlp_service.families.lookup.entry_points", lambda group: points.select(group=group))
    assert family_named(NAME).name == NAME
    assert "the model family broken does not load" in caplog.text


def test_the_shipped_manifest_names_its_family():
    document = json.loads((shipped_model() / "manifest.json").read_text())
    assert {network["features"] for network in document["networks"]} == {"loopnest"}
