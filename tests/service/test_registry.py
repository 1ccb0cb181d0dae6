"""Which version serves, and which may not; of each back end. What a storage does is in `test_registry_storage`."""

import json

import pytest
from models import write_linear_version
from registries import write

from tlp_service.cli import main
from tlp_service.errors import BadVersion, UnknownName, VersionRefused
from tlp_service.versions.journal import Activation, Journal, Mark
from tlp_service.versions.manifest import read_manifest
from tlp_service.versions.registry import Registry
from tlp_service.versions.storage import ACTIVE
from tlp_service.versions.storages import storage_of


@pytest.fixture
def registry(registry_url):
    return Registry(registry_url)


@pytest.fixture
def full(registry, sources):
    for source in sources:
        registry.publish(source)
    return registry, [source.name for source in sources]


def test_an_empty_registry_holds_nothing(registry):
    assert registry.versions() == []
    assert registry.journal() == Journal()
    assert registry.names() == frozenset()


def test_a_published_version_is_lent_whole_and_does_not_serve(registry, sources):
    name = registry.publish(sources[0])
    with registry.checkout(name) as folder:
        assert read_manifest(folder) == read_manifest(sources[0])
    (held,) = registry.versions()
    assert (held.manifest.version, held.is_active, held.mark) == (name, False, None)
    assert registry.publish(sources[0]) == name  # again: nothing to do


def test_a_version_is_immutable(registry, sources, tmp_path):
    registry.publish(sources[0])
    changed = write_linear_version(tmp_path, 1.0)
    manifest = json.loads((changed / "manifest.json").read_text())
    manifest["networks"][0]["platforms"] = ["other"]
    (changed / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadVersion, match="immutable"):
        registry.publish(changed)


def test_a_damaged_version_is_not_published(registry, tmp_path):
    source = write_linear_version(tmp_path)
    (source / "cpu.onnx").write_bytes(b"cut")
    with pytest.raises(BadVersion, match="damaged"):
        registry.publish(source)
    assert registry.versions() == []


def test_activations_are_remembered(full):
    registry, (one, two, _) = full
    registry.activate(one, "me", "try it")
    registry.activate(two, "you")
    journal = registry.journal()
    assert journal.active == two
    assert [(a.version, a.by, a.reason) for a in journal.history] == [(one, "me", "try it"), (two, "you", "")]
    assert [h.manifest.version for h in registry.versions() if h.is_active] == [two]
    assert registry.names() == set(full[1])


@pytest.mark.parametrize("name", ["base-0", "../registry", "", ".", "a/b", "x" * 200])
def test_a_version_that_is_not_there_is_not_activated(full, name):
    with pytest.raises(UnknownName):
        full[0].activate(name, "me")
    assert full[0].journal().active is None


def test_a_version_whose_files_are_damaged_is_not_activated(full, registry_url):
    registry, (one, *_) = full
    write(registry_url, f"{one}/cpu.onnx", b"cut")
    with pytest.raises(VersionRefused, match="damaged"):
        registry.activate(one, "me")


def test_a_marked_version_serves_only_by_force(full):
    registry, (one, two, _) = full
    registry.activate(one, "me")
    registry.mark(two, "rejected", "ranks worse", {"top1": 0.5})
    assert registry.held(two).mark.figures == {"top1": 0.5}
    with pytest.raises(VersionRefused, match="rejected: ranks worse"):
        registry.activate(two, "me")
    assert registry.activate(two, "me", force=True).marks == {}
    assert registry.journal().active == two


def test_rolling_back_goes_back_and_never_forth(full):
    registry, (one, two, three) = full
    for version in (one, two, three):
        registry.activate(version, "me")
    assert registry.rollback("me").active == two
    assert registry.rollback("me").active == one
    with pytest.raises(VersionRefused, match="no earlier"):
        registry.rollback("me")
    assert registry.activate(three, "me").active == three
    assert registry.rollback("me").active == one


def test_rolling_back_passes_over_what_is_marked(full):
    registry, (one, two, three) = full
    for version in (one, two, three):
        registry.activate(version, "me")
    registry.mark(two, "failed", "memory")
    assert registry.rollback("me").active == one


def test_a_failure_of_the_active_version_returns_to_the_one_before(full):
    registry, (one, two, _) = full
    registry.activate(one, "me")
    registry.activate(two, "me")
    assert registry.mark(two, "failed", "not finite").active == one
    assert registry.mark(one, "failed", "not finite").active is None


def test_the_first_version_is_the_first_that_is_offered(full):
    registry, (one, two, _) = full
    assert registry.begin(one, "server").active == one
    assert registry.begin(two, "server").active == one


def test_pruning_keeps_the_active_the_newest_and_the_latest(full):
    registry, (one, two, three) = full
    for version in (two, three, one):
        registry.activate(version, "me")
    # All were created at once, so the newest is the last by name.
    newest = max(one, two, three)
    staying = {one, three, newest}  # three is what a roll-back would return to
    assert set(registry.prune(keep=1, recent=1)) == {two} - staying
    assert {h.manifest.version for h in registry.versions()} == staying
    assert registry.names() == {one, two, three}  # what served is known still
    assert set(registry.prune(keep=0, recent=0)) == {newest} - {one, three}
    assert registry.rollback("me").active == three


def test_a_difference_names_the_fields_of_both(full):
    registry, (one, two, _) = full
    differing = registry.diff(one, two)
    assert differing["version"] == (one, two)
    assert set(differing) == {"version", "networks.cpu.onnx.sha256", "networks.gpu.onnx.sha256"}


@pytest.mark.parametrize(
    "damaged", [b"{", b'{"marks": ' + b"[" * 100_000, b'{"active": "\xff"}', b'{"history": [' * 50_000]
)
def test_a_document_that_is_damaged_is_said_to_be(registry, registry_url, damaged):
    write(registry_url, ACTIVE, damaged)
    with pytest.raises(BadVersion, match=ACTIVE):
        registry.journal()


def test_a_document_of_another_form_is_said_to_be(registry, registry_url, sources):
    write(registry_url, ACTIVE, b'{"form": 2}')
    with pytest.raises(BadVersion, match="form 2"):
        registry.activate(registry.publish(sources[0]), "me")


def test_the_history_is_bounded():
    journal = Journal()
    for number in range(500):
        journal = journal.activated(Activation(f"v{number}", "", ""))
    assert len(journal.history) == 200
    assert journal.recent(2) == ["v499", "v498"]


@pytest.mark.parametrize("manifest", [b'{"name": "an extension", "manifest_version": 3}', b"", None])
def test_pruning_leaves_a_folder_that_is_no_version(registry, registry_url, sources, manifest):
    registry.publish(sources[0])
    write(registry_url, "thesis/chapter.txt", b"all my work")
    if manifest is None:  # a version under another name
        manifest = (sources[1] / "manifest.json").read_bytes()
    write(registry_url, "thesis/manifest.json", manifest)
    assert registry.prune(0, 0) == [sources[0].name]
    assert storage_of(registry_url).read("thesis/chapter.txt") == b"all my work"


def test_the_document_stays_small_however_much_is_marked(sources):
    journal = Journal()
    for number in range(300):
        mark = Mark("rejected", "x" * 100_000, "", {"figures": "y" * 1000})
        journal = journal.marked(f"v{number}", mark)
    assert len(journal.marks) == 300
    assert all(mark.state == "rejected" for mark in journal.marks.values())
    assert [name for name, mark in journal.marks.items() if mark.figures] == [
        f"v{n}" for n in range(200, 300)
    ]
    assert len(journal.encode()) < 300 * 2_300 + 100 * 1_300


def test_an_unknown_kind_of_url_is_an_error_of_the_registry(capsys):
    assert main(["models", "list", "--registry", "nosuch://bucket/models"]) == 2
    assert "nosuch" in capsys.readouterr().err


def test_activating_a_version_that_knows_fewer_platforms_is_told(tmp_path, sources, capsys):
    known = write_linear_version(tmp_path, 4.0)
    manifest = json.loads((known / "manifest.json").read_text())
    manifest["networks"][0]["platforms"] = ["epyc", "zen5", "zen6"]
    (known / "manifest.json").write_text(json.dumps(manifest))
    for folder in (known, sources[0]):
        assert main(["models", "publish", "--registry", str(tmp_path / "registry"), str(folder)]) == 0
    for folder in (known, sources[0], known):
        assert main(["models", "activate", "--registry", str(tmp_path / "registry"), folder.name]) == 0
    warnings = capsys.readouterr().err.splitlines()
    assert warnings == [f"warning: not trained on zen5, zen6, as {known.name} was"]


def test_the_command_publishes_activates_and_rolls_back(tmp_path, sources, capsys, monkeypatch):
    monkeypatch.setenv("TLP_REGISTRY", str(tmp_path / "registry"))
    one, two = (source.name for source in sources[:2])

    def run(*arguments, status=0):
        assert main(["models", *arguments]) == status
        captured = capsys.readouterr()
        return captured.err if status else captured.out

    assert run("publish", str(sources[0])) == f"{one}\n"
    run("publish", str(sources[1]))
    assert run("activate", one, "--reason", "first") == f"{one}\n"
    assert run("activate", two) == f"{two}\n"
    rows = {line.split()[0]: line for line in run("list").splitlines()[1:]}
    assert set(rows) == {one, two}
    assert "active" in rows[two]
    assert "active" not in rows[one]
    listed = json.loads(run("list", "--json"))
    assert {v["manifest"]["version"]: v["active"] for v in listed} == {one: False, two: True}
    assert json.loads(run("show", one))["manifest"]["version"] == one
    assert "networks.cpu.onnx.sha256" in run("diff", one, two)
    assert run("rollback") == f"{one}\n"
    assert run("prune", "--keep", "0", "--recent", "0") == f"{two}\n"
    assert "no earlier version" in run("rollback", status=2)
    assert "holds no 'base-0'" in run("activate", "base-0", status=2)
    assert "manifest.json is missing" in run("publish", str(tmp_path), status=2)
