import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid

import pytest
from models import write_linear_version

from tlp_service.cli import main
from tlp_service.errors import BadVersion, UnknownName, VersionRefused
from tlp_service.versions.journal import Activation, Journal, Mark
from tlp_service.versions.manifest import read_manifest
from tlp_service.versions.registry import Registry
from tlp_service.versions.storage import ACTIVE
from tlp_service.versions.storages import storage_of


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Folders of three versions."""
    folder = tmp_path_factory.mktemp("sources")
    return [write_linear_version(folder / str(factor), factor) for factor in (1.0, 2.0, 3.0)]


@pytest.fixture(params=["folder", "memory", "local"])
def url(request, tmp_path):
    return {
        "folder": str(tmp_path / "registry"),
        "memory": f"memory://{uuid.uuid4().hex}/models",
        "local": f"local://{tmp_path}/registry",
    }[request.param]


@pytest.fixture
def registry(url):
    return Registry(url)


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


def test_a_version_that_is_not_there_is_lent_without_files(registry):
    with registry.checkout("base-0") as folder, pytest.raises(BadVersion, match="missing"):
        read_manifest(folder)


@pytest.mark.parametrize("name", ["base-0", "../registry", "", ".", "a/b", "x" * 200])
def test_a_version_that_is_not_there_is_not_activated(full, name):
    with pytest.raises(UnknownName):
        full[0].activate(name, "me")
    assert full[0].journal().active is None


def test_a_version_whose_files_are_damaged_is_not_activated(full, url):
    registry, (one, *_) = full
    storage = storage_of(url)
    if hasattr(storage, "_write"):
        storage._write(f"{one}/cpu.onnx", b"cut")
    else:
        (storage._path / one / "cpu.onnx").write_bytes(b"cut")
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


def test_of_activations_at_a_time_none_is_lost(full):
    registry, versions = full

    def activate(number):
        registry.activate(versions[number % 3], f"w{number}")

    threads = [threading.Thread(target=activate, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal = registry.journal()
    assert sorted(a.by for a in journal.history) == sorted(f"w{n}" for n in range(12))
    assert journal.active == journal.history[-1].version


def test_processes_that_activate_at_a_time_lose_nothing(tmp_path, sources):
    registry = Registry(tmp_path)
    name = registry.publish(sources[0])
    script = (
        "import sys; from tlp_service.versions.registry import Registry\n"
        "for n in range(10): Registry(sys.argv[1]).activate(sys.argv[2], f'{sys.argv[3]}-{n}')"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), name, str(n)]) for n in range(2)
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len({a.by for a in registry.journal().history}) == 20


@pytest.mark.parametrize(
    "damaged", [b"{", b'{"marks": ' + b"[" * 100_000, b'{"active": "\xff"}', b'{"history": [' * 50_000]
)
def test_a_document_that_is_damaged_is_said_to_be(tmp_path, damaged):
    registry = Registry(tmp_path)
    (tmp_path / ACTIVE).write_bytes(damaged)
    with pytest.raises(BadVersion, match=ACTIVE):
        registry.journal()


def test_a_document_of_another_form_is_said_to_be(tmp_path, sources):
    registry = Registry(tmp_path)
    (tmp_path / ACTIVE).write_text('{"form": 2}')
    with pytest.raises(BadVersion, match="form 2"):
        registry.activate(registry.publish(sources[0]), "me")


def test_the_history_is_bounded():
    journal = Journal()
    for number in range(500):
        journal = journal.activated(Activation(f"v{number}", "", ""))
    assert len(journal.history) == 200
    assert journal.recent(2) == ["v499", "v498"]


def test_a_publish_that_is_killed_leaves_no_half_version(tmp_path, sources):
    """Killed with the first file copied and nothing renamed."""
    registry = Registry(tmp_path / "registry")
    script = (
        "import shutil, sys, time; from tlp_service.versions.registry import Registry\n"
        "copy = shutil.copyfile\n"
        "def slow(source, target):\n"
        "    print('copying', flush=True); copy(source, target); time.sleep(3600)\n"
        "shutil.copyfile = slow\n"
        "Registry(sys.argv[1]).publish(__import__('pathlib').Path(sys.argv[2]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "registry"), str(sources[0])], stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout.readline() == b"copying\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert registry.versions() == []
    assert registry.publish(sources[0]) == sources[0].name  # the lock is not held by the dead
    assert [h.manifest.version for h in registry.versions()] == [sources[0].name]


def test_what_a_killed_writer_left_is_swept_a_day_later(tmp_path, sources):
    registry = Registry(tmp_path)
    for source in sources[:2]:
        registry.publish(source)
    old, new = f".{sources[0].name}-a1b2c3d4", f".{sources[0].name}-e5f6a7b8"
    for name, age in ((old, 100_000), (new, 100), (".Trash-1000", 100_000), (".git-old", 100_000)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    registry.prune(0, 0)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {new, ".Trash-1000", ".git-old"}


@pytest.fixture(params=["", "local://"])
def on_disk(request, tmp_path, sources):
    """A registry with one version, and its folder; as a folder and through fsspec."""
    registry = Registry(f"{request.param}{tmp_path}/registry")
    registry.publish(sources[0])
    return registry, tmp_path / "registry"


def test_pruning_removes_a_link_and_leaves_what_it_leads_to(on_disk, sources, tmp_path):
    registry, folder = on_disk
    elsewhere = tmp_path / "elsewhere" / sources[1].name
    shutil.copytree(sources[1], elsewhere)
    (folder / sources[1].name).symlink_to(elsewhere)
    registry.prune(0, 0)
    if (folder / sources[1].name).is_symlink():  # fsspec doesn't list links
        registry._storage.remove(sources[1].name)
    assert [path.name for path in folder.iterdir() if path.name[0] != "."] == []
    assert read_manifest(elsewhere) == read_manifest(sources[1])


@pytest.mark.parametrize("manifest", [b'{"name": "an extension", "manifest_version": 3}', b"", None])
def test_pruning_leaves_a_folder_that_is_no_version(on_disk, sources, manifest):
    registry, folder = on_disk
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter.txt").write_text("all my work")
    if manifest is None:  # a version under another name
        manifest = (sources[1] / "manifest.json").read_bytes()
    (folder / "thesis" / "manifest.json").write_bytes(manifest)
    assert registry.prune(0, 0) == [sources[0].name]
    assert (folder / "thesis" / "chapter.txt").read_text() == "all my work"


def test_publishing_over_a_folder_of_something_else_leaves_it(tmp_path, sources):
    registry = Registry(tmp_path)
    taken = tmp_path / sources[0].name
    taken.mkdir()
    (taken / "cpu.onnx").write_bytes(b"half deleted")
    (taken / "notes.txt").write_text("mine")
    with pytest.raises(OSError, match="move them away"):
        registry.publish(sources[0])
    assert (taken / "notes.txt").read_text() == "mine"
    (taken / "notes.txt").unlink()
    assert registry.publish(sources[0]) == sources[0].name  # left by a removal that was killed
    assert read_manifest(taken) == read_manifest(sources[0])


def test_a_link_that_leads_nowhere_is_replaced_by_the_version(tmp_path, sources):
    registry = Registry(tmp_path / "registry")
    (tmp_path / "registry").mkdir()
    (tmp_path / "registry" / sources[0].name).symlink_to(tmp_path / "gone")
    assert registry.publish(sources[0]) == sources[0].name
    assert read_manifest(tmp_path / "registry" / sources[0].name) == read_manifest(sources[0])


@pytest.mark.parametrize("name", [ACTIVE, "manifest.json"])
def test_a_document_that_is_too_large_is_refused_before_it_is_kept(on_disk, sources, name):
    registry, folder = on_disk
    path = folder / name if name == ACTIVE else folder / sources[0].name / name
    with path.open("wb") as file:
        file.truncate(3 << 30)  # sparse
    with pytest.raises(BadVersion, match=f"expected at most {32 << 20} bytes"):
        registry.journal() if name == ACTIVE else registry.manifest(sources[0].name)


def test_a_network_that_is_too_large_is_not_copied_from_a_remote_storage(tmp_path, sources):
    registry = Registry(f"local://{tmp_path}/registry")
    registry.publish(sources[0])
    with (tmp_path / "registry" / sources[0].name / "cpu.onnx").open("r+b") as file:
        file.truncate(3 << 30)
    with (
        pytest.raises(BadVersion, match=f"expected at most {512 << 20} bytes"),
        registry.checkout(sources[0].name),
    ):
        pytest.fail("it was lent")


def test_only_the_files_that_the_manifest_names_are_copied_from_a_remote_storage(tmp_path, sources):
    registry = Registry(f"local://{tmp_path}/registry")
    registry.publish(sources[0])
    (tmp_path / "registry" / sources[0].name / "core.dump").write_bytes(b"x")
    with registry.checkout(sources[0].name) as folder:
        assert {path.name for path in folder.iterdir()} == {"manifest.json", "cpu.onnx", "gpu.onnx"}


def test_a_document_that_is_a_pipe_is_an_error_and_no_endless_wait(tmp_path):
    os.mkfifo(tmp_path / ACTIVE)
    with pytest.raises(OSError, match="expected a regular file"):
        Registry(tmp_path).journal()


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


def test_a_writer_that_is_stopped_with_the_lock_keeps_others_for_a_while_only(tmp_path, sources, monkeypatch):
    registry = Registry(tmp_path)
    name = registry.publish(sources[0])
    monkeypatch.setattr("tlp_service.versions.folder_storage._LOCK_S", 0.1)
    with (tmp_path / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="another process holds the lock"):
            registry.activate(name, "me")
    assert registry.activate(name, "me").active == name


def test_the_lock_empties_nothing_that_it_is_a_link_to(tmp_path, sources):
    (tmp_path / "registry").mkdir()
    (tmp_path / "precious").write_text("data")
    (tmp_path / "registry" / ".lock").symlink_to(tmp_path / "precious")
    Registry(tmp_path / "registry").publish(sources[0])
    assert (tmp_path / "precious").read_text() == "data"
