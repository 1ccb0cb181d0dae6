"""One step of learning, on committed records: what is better serves, what is not is marked."""

import dataclasses
import json
import random
from itertools import chain, repeat

import msgspec
import pyarrow as pa
import pytest
from models import write_linear_version

from tlp_client.records import RecordParser
from tlp_client.wire.predict import request_of
from tlp_service.cli import main
from tlp_service.families.lookup import preset_named
from tlp_service.learning import learn as learn_module
from tlp_service.learning.learn import learn
from tlp_service.learning.outcome import Outcome
from tlp_service.records.importer import import_logs
from tlp_service.records.platform_table import OnePlatform
from tlp_service.records.store import RecordStore
from tlp_service.scoring.scorer import Scorer
from tlp_service.training.networks import KindTraining
from tlp_service.versions.registry import Registry

pytestmark = pytest.mark.training


SETTINGS = dataclasses.replace(
    preset_named("loopnest").settings, epochs=30, batch=64, learning_rate=1e-2, unknown_platforms=0.0
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    sizes = {"width": 16, "blocks": 1, "members": 2, "task_hidden": 8}
    monkeypatch.setattr(type(preset_named("loopnest")), "architecture", sizes)


def changed(lines, change):
    """Return the lines of valid records with other costs."""
    found = []
    for line in lines:
        document = json.loads(line)
        if document["r"][1] == 0:
            document["r"][0] = change(document["r"][0])
            document["r"][3] += random.random()
            found.append(json.dumps(document))
    return found


def add(store, folder, lines, platform):
    log = folder / f"{platform}-{random.random()}.json"
    log.write_text("\n".join(lines))
    import_logs([log], store, OnePlatform(platform), processes=1)


@pytest.fixture(scope="module")
def begun(tmp_path_factory, measured_lines):
    """A version that was taught on platform `old` that the fast are slow."""
    folder = tmp_path_factory.mktemp("begun")
    store = RecordStore.create(folder / "store", seed=4)
    add(store, folder, changed(measured_lines, lambda costs: [1e-4 / c for c in costs]), "old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(preset_named("loopnest")),
            "architecture",
            {"width": 16, "blocks": 1, "members": 2, "task_hidden": 8},
        )
        options = ["--epochs", "30", "--batch", "64", "--learning-rate", "1e-2"]
        assert main(["train", "--records", str(store.folder), "--out", str(folder / "out"), *options]) == 0
    (version,) = (path.parent for path in (folder / "out").glob("*/manifest.json"))
    return version


@pytest.fixture
def registry(tmp_path, begun):
    registry = Registry(tmp_path / "models")
    registry.activate(registry.publish(begun), by="test")
    return registry


@pytest.fixture
def store(tmp_path):
    return RecordStore.create(tmp_path / "store", seed=4)


def test_a_new_platform_is_learned_and_serves(tmp_path, registry, store, begun, measured_lines):
    add(store, tmp_path, measured_lines, "new")
    outcome = learn(store, registry, settings=SETTINGS)
    assert outcome.is_accepted, outcome.reason
    journal = registry.journal()
    assert (journal.active, journal.history[-1].by) == (outcome.version, "trainer")
    assert outcome.reason.startswith("better: new ")
    manifest = registry.manifest(outcome.version)
    general, own = manifest.networks
    assert general == registry.manifest(begun.name).networks[0]
    assert (own.serves, own.platforms) == ("new", ["old", "new"])
    assert manifest.training["from"] == begun.name
    assert manifest.training["gate"]["new"] > 0.5
    with registry.checkout(outcome.version) as folder:
        Scorer(folder)
    assert registry.rollback("test").active == begun.name


def test_what_is_shuffled_is_not_learned(tmp_path, registry, store, begun, measured_lines):
    """The old platform as it was, and a new one whose costs mean nothing."""
    random.seed(1)
    add(store, tmp_path, changed(measured_lines, lambda costs: [1e-4 / c for c in costs]), "old")
    add(store, tmp_path, changed(measured_lines, lambda costs: [random.uniform(1e-3, 1e-2)]), "poison")
    outcome = learn(store, registry, settings=SETTINGS)
    assert (outcome.is_accepted, registry.journal().active) == (False, begun.name)
    mark = registry.journal().marks[outcome.version]
    assert (mark.state, mark.reason) == ("rejected", outcome.reason)
    assert {"old pair_accuracy", "poison top1"} <= set(mark.figures)


def scores_of(registry, version, platform, lines):
    """Return the scores of a version for records that are stated to be of a platform."""
    records = [RecordParser().parse(line) for line in lines]
    request = request_of(records[0].task, (record.primitives for record in records), platform)
    with registry.checkout(version) as folder:
        return Scorer(folder).score(request, chunk=64).scores.tobytes()


def test_what_one_platform_learns_changes_no_score_of_another(
    tmp_path, registry, store, begun, measured_lines
):
    """One platform is poisoned while another is measured well: the next version has learned of that alone."""
    random.seed(2)
    add(store, tmp_path, changed(measured_lines, lambda costs: [random.uniform(1e-3, 1e-2)]), "old")
    add(store, tmp_path, measured_lines, "new")
    add(store, tmp_path, changed(measured_lines, lambda costs: [1e-4 / c for c in costs]), "odd")
    outcome = learn(store, registry, ["new", "old"], SETTINGS)
    assert outcome.is_accepted, outcome.reason
    manifest = registry.manifest(outcome.version)
    assert [n.serves for n in manifest.networks] == [None, "new"]
    assert manifest.training["verdict"]["old"].startswith(("worse", "not better"))
    for platform in ("old", "cpu"):
        before, after = (
            scores_of(registry, version, platform, measured_lines[:9])
            for version in (begun.name, outcome.version)
        )
        assert before == after
    # The next step starts from the network of this one. A platform with its own network takes no number in the network
    # of another.
    outcome = learn(store, registry, ["odd"], SETTINGS)
    manifest = registry.manifest(outcome.version)
    assert [n.serves for n in manifest.networks] == [None, "new", "odd"]
    assert manifest.networks[2].platforms == ["old", "odd"]
    assert set(manifest.training["gate"]) >= {"new"}


def test_what_is_measured_without_a_platform_changes_no_score_of_other_hardware(
    tmp_path, registry, store, begun, measured_lines
):
    """Kind of fault: a name that a client leaves out, or chooses, may be that of other hardware.

    It is stored as of the kind.
    """
    add(store, tmp_path, measured_lines, "cpu")
    outcome = learn(store, registry, ["cpu"], SETTINGS)
    assert outcome.is_accepted, outcome.reason
    assert [n.serves for n in registry.manifest(outcome.version).networks] == [None, "cpu"]

    def scores(platform):
        return [
            scores_of(registry, version, platform, measured_lines[:9])
            for version in (begun.name, outcome.version)
        ]

    for platform in ("old", None):  # a worker whose platform the version does not know leaves it out
        before, after = scores(platform)
        assert before == after
    before, after = scores("cpu")
    assert before != after


@pytest.mark.parametrize("unchanged", [1, 2])
def test_a_version_that_began_to_serve_meanwhile_stays(
    tmp_path, registry, store, begun, measured_lines, monkeypatch, unchanged
):
    """During the training, or during the publication."""
    add(store, tmp_path, measured_lines, "new")
    first = registry.journal()
    later = msgspec.structs.replace(first, active="another")
    answers = chain([first] * unchanged, repeat(later))
    with monkeypatch.context() as patch:
        patch.setattr(registry, "journal", lambda: next(answers))
        outcome = learn(store, registry, settings=SETTINGS)
    # Not a verdict: the step is tried again with the version that serves then, and nothing is noted.
    assert (outcome.is_accepted, outcome.is_verdict, outcome.version) == (False, False, None)
    assert "another version began to serve" in outcome.reason
    assert registry.journal() == first
    # Nor does anything of it stay that would fill the registry, try after try.
    assert [held.manifest.version for held in registry.versions()] == [begun.name]


def test_who_lost_the_lease_publishes_nothing(tmp_path, registry, store, measured_lines):
    add(store, tmp_path, measured_lines, "new")
    outcome = learn(
        store, registry, settings=dataclasses.replace(SETTINGS, epochs=1), may_publish=lambda: False
    )
    assert (outcome.version, outcome.is_accepted, outcome.is_verdict) == (None, False, False)
    assert len(registry.versions()) == 1


@pytest.mark.parametrize("lines", [0, 2])
def test_too_few_records_are_no_step(tmp_path, registry, store, begun, measured_lines, lines):
    if lines:
        add(store, tmp_path, measured_lines[:lines], "new")
    outcome = learn(store, registry, settings=SETTINGS)
    assert (outcome.version, outcome.state, outcome.reason) == (
        None,
        "refused",
        "no task has enough records to train on some and hold others back",
    )


def test_records_without_an_order_are_refused_before_anything_is_trained(
    tmp_path, registry, store, measured_lines, monkeypatch
):
    monkeypatch.setattr(learn_module, "build_sets", lambda *arguments: pytest.fail("features were made"))
    add(store, tmp_path, changed(measured_lines, lambda costs: [1e-3]), "junk")
    outcome = learn(store, registry, settings=SETTINGS)
    assert (outcome.state, outcome.is_trained) == ("refused", False)
    assert outcome.reason == "no task with as many as 4 different costs"


def test_a_platform_that_cannot_be_learned_takes_no_other_along(
    tmp_path, registry, store, measured_lines, monkeypatch, caplog
):
    """A platform that is refused, in any way, must not affect the others."""
    few = changed(measured_lines, lambda costs: costs)
    add(store, tmp_path, changed(measured_lines, lambda costs: [1e-3]), "alike")
    add(store, tmp_path, few[:2], "few")
    add(store, tmp_path, few[2:40], "odd")
    for platform in ("fails", "gone", "new"):
        add(store, tmp_path, few, platform)
    run, batches = KindTraining.run, store.batches

    def fails(training, folder):
        if training.serves == "fails":
            raise RuntimeError("not enough memory")
        return run(training, folder)

    def is_gone(platform, columns, choose=None):
        if platform == "gone":
            raise OSError("damaged")
        for rows in batches(platform, columns, choose):
            if platform == "odd":  # as another program wrote it
                odd = pa.array(['[["XX",1]]'] * len(rows))
                rows = rows.set_column(rows.schema.get_field_index("primitives"), "primitives", odd)
            yield rows

    monkeypatch.setattr(KindTraining, "run", fails)
    monkeypatch.setattr(store, "batches", is_gone)
    outcome = learn(store, registry, settings=SETTINGS)
    assert outcome.is_accepted, outcome.reason
    assert [n.serves for n in registry.manifest(outcome.version).networks] == [None, "new"]
    assert learn(store, registry, ["fails"], SETTINGS) == Outcome(
        None, False, "training on fails failed: not enough memory", "failed"
    )
    assert (
        learn(store, registry, ["odd"], SETTINGS).state == "refused"
    )  # the reader leaves all of its rows out
    assert "odd: 38 records are left out" in caplog.text
    assert learn(store, registry, ["gone"], SETTINGS) == Outcome(
        None, False, "the records of gone cannot be read: damaged", "unreadable"
    )


@pytest.mark.parametrize("numbers", [2, 1])
def test_a_platform_takes_a_number_in_its_own_network_only(
    tmp_path, registry, store, begun, measured_lines, monkeypatch, numbers
):
    """The 65th platform learns like the first if its source network has a number left.

    The test has two numbers, or one, instead of 64.
    """
    monkeypatch.setattr("tlp_service.families.loopnest.encoder.PLATFORMS", numbers)
    quick = dataclasses.replace(SETTINGS, epochs=1)
    rising = changed(measured_lines, lambda costs: costs)
    for platform in ("old", "a", "b"):
        add(store, tmp_path, rising, platform)
    outcomes = []
    for platform in ("a", "b", "old"):
        outcomes.append(learn(store, registry, [platform], quick))
        if outcomes[-1].version is not None:
            registry.activate(outcomes[-1].version, by="test", force=True)
    if numbers == 2:
        last = registry.manifest(outcomes[-1].version)
        assert [n.serves for n in last.networks] == [None, "a", "b", "old"]
        for outcome, platform in zip(outcomes, ("a", "b"), strict=False):
            assert outcome.state == "judged"
            (own,) = (n for n in registry.manifest(outcome.version).networks if n.serves == platform)
            assert own.platforms == ["old", platform]
    else:
        assert [outcome.state for outcome in outcomes] == ["refused", "refused", "judged"]
        assert outcomes[0].reason == (
            "2 platforms are more than the 1 of one network: no platform number is left for a; "
            "'tlp train' can make a version of fewer platforms"
        )


def test_only_a_model_that_can_be_fine_tuned_learns(tmp_path, store):
    registry = Registry(tmp_path / "models")
    outcome = learn(store, registry)
    assert (outcome.reason, outcome.is_verdict) == ("no version serves", False)
    linear = write_linear_version(tmp_path / "linear")
    registry.activate(registry.publish(linear), by="test")
    assert learn(store, registry).reason == f"{linear.name} is a version of 'published', which does not learn"
