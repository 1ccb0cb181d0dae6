"""The contract of every storage of a registry; tests of single back ends follow at the end."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from registries import BACK_ENDS, write

from tlp_service.errors import BadVersion
from tlp_service.versions.folder_storage import FolderStorage
from tlp_service.versions.manifest import read_manifest
from tlp_service.versions.storage import ACTIVE
from tlp_service.versions.storages import storage_of


@pytest.fixture
def storage(registry_url):
    return storage_of(registry_url)


@pytest.fixture
def put(sources):
    """Return a function that puts the first version, or another one, into a storage."""

    def put(storage, number=0):
        storage.put(sources[number], read_manifest(sources[number]))
        return sources[number].name

    return put


@pytest.fixture
def names(storage, put):
    """Names of two versions in the storage."""
    return [put(storage, number) for number in range(2)]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_empty_storage_holds_nothing(storage):
    assert storage.versions() == []
    assert storage.read(ACTIVE) is None
    with storage.checkout("base-0") as folder, pytest.raises(BadVersion, match="missing"):
        read_manifest(folder)


def test_a_version_comes_back_byte_for_byte(storage, names, sources):
    assert sorted(storage.versions()) == sorted(names)
    for source in sources[:2]:
        manifest = (source / "manifest.json").read_bytes()
        assert storage.read(f"{source.name}/manifest.json") == manifest
        with storage.checkout(source.name) as folder:
            assert contents(folder) == contents(source)


def test_only_a_folder_with_a_manifest_is_a_version(storage, names, registry_url):
    write(registry_url, "base-0/cpu.onnx", b"its manifest comes last")
    write(registry_url, f".{names[0]}-a1b2c3d4/manifest.json", b"is being written")
    write(registry_url, "notes/more/manifest.json", b"deeper")
    write(registry_url, "manifest.json", b"of no folder")
    assert sorted(storage.versions()) == sorted(names)


def test_a_removed_version_is_gone_and_can_be_put_again(storage, names, put):
    storage.remove(names[0])
    assert storage.versions() == names[1:]
    assert storage.read(f"{names[0]}/manifest.json") is None
    put(storage)
    assert sorted(storage.versions()) == sorted(names)


def test_what_a_removal_that_was_killed_left_is_replaced(storage, put, registry_url, sources):
    write(registry_url, f"{sources[0].name}/cpu.onnx", b"half deleted")
    with storage.checkout(put(storage)) as folder:
        assert read_manifest(folder) == read_manifest(sources[0])


def test_a_copy_that_fails_leaves_no_version_and_can_be_repeated(storage, put, tmp_path, sources):
    broken = tmp_path / "broken"
    shutil.copytree(sources[0], broken)
    (broken / "gpu.onnx").unlink()
    with pytest.raises(FileNotFoundError):
        storage.put(broken, read_manifest(sources[0]))
    assert storage.versions() == []
    assert [put(storage)] == storage.versions()


def test_the_document_is_made_from_what_is_there(storage):
    seen = []

    def change(made):
        storage.change(lambda before: seen.append(before) or made)

    for made in (b"one", None, b"two"):
        change(made)
    assert (seen, storage.read(ACTIVE)) == ([None, b"one", b"one"], b"two")

    def fail(before):
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        storage.change(fail)
    assert storage.read(ACTIVE) == b"two"


def test_no_change_is_lost_of_several_at_a_time(storage):
    def append(number):
        storage.change(lambda before: (before or b"") + b"%c" % number)

    threads = [threading.Thread(target=append, args=(ord("a") + n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(storage.read(ACTIVE)) == list(b"abcdefghijkl")


#: Back ends whose files lie in a folder.
on_disk = pytest.mark.parametrize("registry_url", ["folder", "file"], indirect=True)


@on_disk
def test_a_link_is_removed_and_its_target_stays(storage, put, registry_url, tmp_path, sources):
    put(storage)
    shutil.copytree(sources[1], tmp_path / "elsewhere")
    link = tmp_path / "registry" / sources[1].name
    link.symlink_to(tmp_path / "elsewhere")
    storage.remove(link.name)
    assert not link.is_symlink()
    assert storage.versions() == [sources[0].name]
    assert contents(tmp_path / "elsewhere") == contents(sources[1])


@on_disk
@pytest.mark.parametrize("name", [ACTIVE, "a-version/manifest.json"])
def test_a_document_that_is_too_large_is_refused_before_it_is_kept(storage, registry_url, tmp_path, name):
    write(registry_url, name, b"")
    with (tmp_path / "registry" / name).open("wb") as file:
        file.truncate(3 << 30)  # sparse
    with pytest.raises(BadVersion, match=f"expected at most {32 << 20} bytes"):
        storage.read(name)


@pytest.mark.parametrize("back_end", ["folder", "file"])
def test_a_storage_that_cannot_be_written_or_reached_is_an_oserror(tmp_path, put, back_end):
    (tmp_path / "registry").write_text("a file, where a folder is needed")
    storage = storage_of(BACK_ENDS[back_end](tmp_path))
    with pytest.raises(OSError, match="registry"):
        storage.change(lambda before: b"new")
    with pytest.raises(OSError, match="registry"):
        put(storage)


# Through fsspec no lock reaches all writers, and what is lent is a copy.


@pytest.fixture
def remote(tmp_path):
    return storage_of(BACK_ENDS["file"](tmp_path))


@pytest.mark.parametrize("times", [1, 4, 5])
def test_a_change_that_another_writer_overwrites_is_made_anew(remote, monkeypatch, times):
    write_own, overwritten = remote._write, []

    def write_both(name, content):
        write_own(name, content)
        if len(overwritten) < times:
            overwritten.append(b"other %d" % len(overwritten))
            write_own(name, overwritten[-1])

    monkeypatch.setattr(remote, "_write", write_both)
    if times == 5:
        with pytest.raises(OSError, match="gave up after 5 attempts"):
            remote.change(lambda before: b"own")
    else:
        remote.change(lambda before: b"own after " + (before or b"nothing"))
        assert remote.read(ACTIVE) == b"own after " + overwritten[-1]


def test_a_network_that_is_too_large_is_not_copied(remote, put, tmp_path):
    name = put(remote)
    with (tmp_path / "registry" / name / "cpu.onnx").open("r+b") as file:
        file.truncate(3 << 30)
    with pytest.raises(BadVersion, match=f"expected at most {512 << 20} bytes"), remote.checkout(name):
        pytest.fail("it was lent")


def test_only_the_files_that_the_manifest_names_are_copied(remote, put, tmp_path):
    name = put(remote)
    (tmp_path / "registry" / name / "core.dump").write_bytes(b"x")
    with remote.checkout(name) as folder:
        assert set(contents(folder)) == {"manifest.json", "cpu.onnx", "gpu.onnx"}


# A folder is changed under a lock, and its versions are written aside and renamed.


@pytest.fixture
def folder(tmp_path):
    return FolderStorage(tmp_path / "registry")


def test_processes_that_change_a_folder_at_a_time_lose_nothing(folder, tmp_path):
    script = (
        "import pathlib, sys; from tlp_service.versions.folder_storage import FolderStorage\n"
        "storage = FolderStorage(pathlib.Path(sys.argv[1]))\n"
        "for _ in range(20): storage.change(lambda before: (before or b'') + sys.argv[2].encode())"
    )
    path = str(tmp_path / "registry")
    writers = [subprocess.Popen([sys.executable, "-c", script, path, letter]) for letter in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert sorted(folder.read(ACTIVE)) == sorted(b"ab" * 20)
    assert (tmp_path / "registry" / ACTIVE).stat().st_mode & 0o777 == 0o644  # servers of other users read it


def test_a_copy_that_is_killed_leaves_no_half_version(folder, put, tmp_path, sources):
    """Killed with the first file copied and nothing renamed."""
    script = (
        "import pathlib, shutil, sys, time; from tlp_service.versions.registry import Registry\n"
        "copy = shutil.copyfile\n"
        "def slow(source, target):\n"
        "    print('copying', flush=True); copy(source, target); time.sleep(3600)\n"
        "shutil.copyfile = slow\n"
        "Registry(sys.argv[1]).publish(pathlib.Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "registry"), str(sources[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"copying\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert folder.versions() == []
    assert [put(folder)] == folder.versions()  # the lock is not held by the dead


def test_what_a_killed_writer_left_is_swept_a_day_later(folder, put, tmp_path):
    name = put(folder)
    old, new = f".{name}-a1b2c3d4", f".{name}-e5f6a7b8"
    for left, age in ((old, 100_000), (new, 100), (".Trash-1000", 100_000), (".git-old", 100_000)):
        (tmp_path / "registry" / left).mkdir()
        os.utime(tmp_path / "registry" / left, (time.time() - age,) * 2)
    folder.remove(name)
    left = {path.name for path in (tmp_path / "registry").iterdir() if path.is_dir()}
    assert left == {new, ".Trash-1000", ".git-old"}


def test_a_folder_with_other_files_is_not_replaced_by_a_version(folder, put, tmp_path, sources):
    taken = tmp_path / "registry" / sources[0].name
    taken.mkdir(parents=True)
    (taken / "notes.txt").write_text("mine")
    with pytest.raises(OSError, match="move them away"):
        put(folder)
    assert (taken / "notes.txt").read_text() == "mine"


def test_a_link_that_leads_nowhere_is_replaced_by_the_version(folder, put, tmp_path, sources):
    (tmp_path / "registry").mkdir()
    link = tmp_path / "registry" / sources[0].name
    link.symlink_to(tmp_path / "gone")
    put(folder)
    assert contents(link) == contents(sources[0])


def test_a_document_that_is_a_pipe_is_an_error_and_no_endless_wait(folder, tmp_path):
    (tmp_path / "registry").mkdir()
    os.mkfifo(tmp_path / "registry" / ACTIVE)
    with pytest.raises(OSError, match="expected a regular file"):
        folder.read(ACTIVE)


def test_a_writer_that_is_stopped_with_the_lock_keeps_others_for_a_while_only(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("tlp_service.versions.folder_storage._LOCK_S", 0.1)
    (tmp_path / "registry").mkdir()
    with (tmp_path / "registry" / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="another process holds the lock"):
            folder.change(lambda before: b"new")
    folder.change(lambda before: b"new")
    assert folder.read(ACTIVE) == b"new"


def test_the_lock_empties_nothing_that_it_is_a_link_to(folder, tmp_path):
    (tmp_path / "registry").mkdir()
    (tmp_path / "precious").write_text("data")
    (tmp_path / "registry" / ".lock").symlink_to(tmp_path / "precious")
    folder.change(lambda before: b"new")
    assert (tmp_path / "precious").read_text() == "data"
