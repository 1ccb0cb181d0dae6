"""Letters on disk: what a file holds, who owns it, what a damaged file or a full disk costs."""

import json
import os
import resource
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tlp_client import locked_file, spool
from tlp_client.spool import Letter, Spool, find_folder

URL = "http://cost-model:8000"
PLENTY = 2**30


def letters(*numbers, text="line"):
    return [Letter(f"id-{n}", f'{{"{text}": {n}}}', "v1", "w") for n in numbers]


def numbers(found):
    return [int(letter.id.removeprefix("id-")) for letter in found]


def spool_in(folder, url=URL, platform=None):
    return Spool(folder, url, platform)


def die(spool):
    """Let go of the file as the end of a process does."""
    spool.begin_anew()


def left_in(folder, *numbers_):
    """Leave a dead process's file with letters, and return its path."""
    dead = spool_in(folder)
    dead.add(letters(*numbers_))
    die(dead)
    return max(folder.glob("*.jsonl"))


@contextmanager
def files_of_at_most(size):
    """A full disk, as far as this process can tell: a write is cut, the next fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_a_dead_process_left_is_taken_over_whole_and_in_order(tmp_path):
    written = [Letter("a", '{"i": "é"}', None, "w-1"), *letters(2, 1)]
    dead = spool_in(tmp_path)
    dead.add(written[:1])
    dead.add(written[1:])
    die(dead)
    assert spool_in(tmp_path).adopt(PLENTY) == written


def test_without_letters_there_is_no_file_and_no_folder(tmp_path):
    folder = tmp_path / "outbox"
    assert spool_in(folder).adopt(PLENTY) == []
    spool_in(folder).add([])
    assert not folder.exists()


def test_what_is_gone_is_not_taken_over_and_the_last_takes_the_file_along(tmp_path):
    dead = spool_in(tmp_path)
    dead.add(letters(1, 2, 3))
    dead.remove(["id-1", "id-unknown"])
    dead.add(letters(4))
    dead.remove(["id-3"])
    die(dead)
    heir = spool_in(tmp_path)
    assert numbers(heir.adopt(PLENTY)) == [2, 4]
    heir.remove(["id-2", "id-4"])
    assert (list(tmp_path.iterdir()), heir.held) == ([], 0)
    heir.add(letters(5))  # and a new file begins
    die(heir)
    assert numbers(spool_in(tmp_path).adopt(PLENTY)) == [5]


def test_a_letter_that_comes_again_after_it_went_is_held_again(tmp_path):
    dead = spool_in(tmp_path)
    dead.add(letters(1, 2))
    dead.remove(["id-1"])
    dead.add(letters(1))
    die(dead)
    assert numbers(spool_in(tmp_path).adopt(PLENTY)) == [2, 1]


def test_a_file_whose_owner_lives_is_left_alone(tmp_path):
    owner = spool_in(tmp_path)
    owner.add(letters(1))
    assert spool_in(tmp_path).adopt(PLENTY) == []
    assert owner.held == 1


def test_letters_for_another_service_or_platform_are_left_alone(tmp_path):
    left_in(tmp_path, 1)
    assert spool_in(tmp_path, url="http://other:8000").adopt(PLENTY) == []
    assert spool_in(tmp_path, platform="v100").adopt(PLENTY) == []
    assert numbers(spool_in(tmp_path, url=URL + "/").adopt(PLENTY)) == [1]


def test_a_file_name_does_not_tell_the_password_in_a_url(tmp_path):
    secret = spool_in(tmp_path, url="http://me:secret@cost-model")
    secret.add(letters(1))
    (path,) = tmp_path.iterdir()
    assert "secret" not in path.name + path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_files_of_several_processes_are_taken_oldest_first(tmp_path):
    for n in range(3):
        left_in(tmp_path, 2 * n, 2 * n + 1)
    heir = spool_in(tmp_path)
    assert numbers(heir.adopt(PLENTY)) == [0, 1, 2, 3, 4, 5]
    assert len(list(tmp_path.iterdir())) == 1


def test_more_than_fits_is_left_to_the_next_process(tmp_path):
    paths = [left_in(tmp_path, n) for n in range(3)]
    size = paths[0].stat().st_size
    heir = spool_in(tmp_path)
    assert numbers(heir.adopt(2 * size)) == [0, 1]
    assert numbers(spool_in(tmp_path).adopt(2 * size)) == [2]


def test_killed_between_writing_what_it_took_over_and_deleting_the_old_file(tmp_path):
    """Both files hold the letters; they are known by their ids."""
    old = left_in(tmp_path, 1, 2)
    content = old.read_bytes()
    heir = spool_in(tmp_path)
    heir.adopt(PLENTY)
    heir.add(letters(3))
    die(heir)
    old.write_bytes(content)
    assert numbers(spool_in(tmp_path).adopt(PLENTY)) == [1, 2, 3]


@pytest.mark.parametrize("cut", [1, 2, 10])
def test_a_line_cut_by_a_kill_is_skipped_with_one_warning(tmp_path, caplog, cut):
    path = left_in(tmp_path, 1, 2)
    path.write_bytes(path.read_bytes()[: -1 - cut])
    assert numbers(spool_in(tmp_path).adopt(PLENTY)) == [1]
    assert [r.message for r in caplog.records] == ["1 damaged lines of waiting measurements are skipped"]


DAMAGE = [
    b"\0" * 100,
    b"\xff\xfe",
    b"[",
    b"[" * 100_000,
    b"null",
    b"7",
    b'"gone"',
    b"[]",
    b"{}",
    b'{"gone": 7}',
    b'{"gone": [[]]}',
    b'{"id": "x", "line": 7, "version": null, "worker": "w"}',
    b'{"id": "x", "line": "\\ud800", "version": null, "worker": "w"}',
    b'{"id": "x", "line": "{}", "version": 7, "worker": "w"}',
    b'{"id": "x", "line": "{}", "version": null}',
    b'{"id": ["x"], "line": "{}", "version": null, "worker": "w"}',
    b"",
]


def test_damaged_lines_are_kept_in_quarantine_with_one_warning(tmp_path, caplog):
    path = left_in(tmp_path, 1, 2)
    first, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, *DAMAGE, second]) + b"\n")
    heir = spool_in(tmp_path)
    assert numbers(heir.adopt(PLENTY)) == [1, 2]
    kept = [line for line in DAMAGE if line]
    (warning,) = [r.message for r in caplog.records]
    assert warning == (
        f"{len(DAMAGE)} damaged lines of waiting measurements are skipped; "
        f"{len(kept)} of them are kept in {heir.quarantine.path}"
    )
    entries = [json.loads(line) for line in heir.quarantine.path.read_text().splitlines()]
    assert [entry["text"].rstrip("\n") for entry in entries] == [
        line.decode(errors="replace") for line in kept
    ]


def test_a_letter_of_a_later_client_is_sent_without_what_this_one_does_not_know(tmp_path):
    path = left_in(tmp_path, 1)
    fields = json.loads(path.read_bytes())
    path.write_bytes(json.dumps({**fields, "round": 7}).encode() + b"\n")
    assert spool_in(tmp_path).adopt(PLENTY) == letters(1)


def test_what_cannot_go_to_quarantine_stays_in_its_file(tmp_path, caplog):
    path = left_in(tmp_path, 1)
    whole = b"damaged\n" + path.read_bytes()
    path.write_bytes(whole)
    heir = spool_in(tmp_path)
    heir.quarantine.path.mkdir()
    assert heir.adopt(PLENTY) == []
    assert path.read_bytes() == whole
    assert len(caplog.records) == 1
    heir.quarantine.path.rmdir()
    assert numbers(spool_in(tmp_path).adopt(PLENTY)) == [1]


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path, caplog):
    (tmp_path / "file").touch()
    poor = spool_in(tmp_path / "file" / "outbox")
    assert poor.adopt(PLENTY) == []
    poor.add(letters(1))
    poor.remove(["id-1"])
    poor.add(letters(2))
    assert poor.held == 0
    assert len(caplog.records) == 1


def test_a_full_disk_is_one_warning_and_costs_only_what_it_did_not_take(tmp_path, caplog):
    owner = spool_in(tmp_path)
    owner.add(letters(1))
    (path,) = tmp_path.iterdir()
    with files_of_at_most(path.stat().st_size + 40):
        owner.add(letters(2))  # cut after 40 bytes
        owner.add(letters(3))
        owner.remove(["id-2"])
    assert owner.held == 1
    owner.add(letters(4))
    die(owner)
    assert len(caplog.records) == 1
    assert numbers(spool_in(tmp_path).adopt(PLENTY)) == [1, 4]
    assert len(caplog.records) == 1  # no line is damaged


def test_on_a_full_disk_nothing_is_taken_over_and_nothing_lost(tmp_path, caplog):
    path = left_in(tmp_path, 1, 2)
    with files_of_at_most(path.stat().st_size - 1):
        assert spool_in(tmp_path).adopt(PLENTY) == []
    assert list(tmp_path.iterdir()) == [path]
    assert len(caplog.records) == 1
    assert numbers(spool_in(tmp_path).adopt(PLENTY)) == [1, 2]


def test_a_file_is_rewritten_when_most_of_it_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "_SLACK_BYTES", 0)
    owner = spool_in(tmp_path)
    owner.add(letters(*range(100)))
    (path,) = tmp_path.iterdir()
    whole = path.stat().st_size
    for n in range(90):
        owner.remove([f"id-{n}"])
        assert path.stat().st_size < 2 * whole
    assert path.stat().st_size < whole / 4
    assert list(tmp_path.iterdir()) == [path]
    assert spool_in(tmp_path).adopt(PLENTY) == []  # the new file has its lock, too
    die(owner)
    assert numbers(spool_in(tmp_path).adopt(PLENTY)) == list(range(90, 100))


def test_a_file_that_cannot_be_rewritten_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(spool, "_SLACK_BYTES", 0)
    owner = spool_in(tmp_path)
    owner.add(letters(1, 2, 3))
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
    owner.remove(["id-1", "id-2"])
    assert len(caplog.records) == 1
    assert len(list(tmp_path.iterdir())) == 1
    assert spool_in(tmp_path).adopt(PLENTY) == []
    die(owner)
    monkeypatch.undo()
    assert numbers(spool_in(tmp_path).adopt(PLENTY)) == [3]


def test_what_went_while_the_disk_was_full_does_not_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "_SLACK_BYTES", 0)
    owner = spool_in(tmp_path)
    owner.add(letters(1, 2, 3, 4))
    (path,) = tmp_path.iterdir()
    with files_of_at_most(path.stat().st_size):
        owner.remove(["id-1"])
    owner.remove(["id-2", "id-3"])  # and the file is rewritten
    assert owner.held == 1
    die(owner)
    assert numbers(spool_in(tmp_path).adopt(PLENTY)) == [4]


def test_a_file_that_its_owner_replaces_while_another_opens_it_is_not_taken(tmp_path, monkeypatch):
    path = left_in(tmp_path, 1)
    flock = locked_file.fcntl.flock

    def replaced_first(descriptor, operation):
        aside = tmp_path / "new"
        aside.write_bytes(path.read_bytes())
        os.replace(aside, path)
        flock(descriptor, operation)

    monkeypatch.setattr(locked_file.fcntl, "flock", replaced_first)
    assert locked_file.LockedFile.take(path) is None


def test_leftovers_of_a_kill_while_writing_aside_go_when_they_are_old(tmp_path):
    path = left_in(tmp_path, 1)
    old, young = path.with_name(path.stem + "0.tmp"), path.with_name(path.stem + "1.tmp")
    old.touch()
    young.touch()
    os.utime(old, (time.time() - 7200,) * 2)
    assert numbers(spool_in(tmp_path).adopt(PLENTY)) == [1]
    assert not old.exists()
    assert young.exists()


def test_a_closed_spool_leaves_its_letters_and_takes_no_more(tmp_path):
    closed = spool_in(tmp_path)
    closed.add(letters(1))
    closed.close()
    closed.add(letters(2))
    closed.remove(["id-1"])
    assert numbers(spool_in(tmp_path).adopt(PLENTY)) == [1]


def test_a_line_is_json(tmp_path):
    path = left_in(tmp_path, 1)
    assert json.loads(path.read_text()) == {
        "id": "id-1",
        "line": '{"line": 1}',
        "version": "v1",
        "worker": "w",
    }


def test_where_files_are(monkeypatch, tmp_path):
    monkeypatch.setenv("TLP_OUTBOX_DIR", "/named")
    assert find_folder(None) == Path("/named")
    assert find_folder(tmp_path) == tmp_path
    assert find_folder("") is None
    assert find_folder("here") == Path.cwd() / "here"
    monkeypatch.setenv("TLP_OUTBOX_DIR", "")
    assert find_folder(None) is None
    monkeypatch.delenv("TLP_OUTBOX_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert find_folder(None) == Path("/cache/tlp/outbox")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert find_folder(None) == Path("/home/me/.cache/tlp/outbox")


def test_without_a_cache_folder_or_locks_there_is_memory_only(monkeypatch, caplog):
    monkeypatch.delenv("TLP_OUTBOX_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert find_folder(None) is None
    assert len(caplog.records) == 1
    monkeypatch.setattr(spool, "IS_AVAILABLE", False)
    assert find_folder("/named") is None


def _address(folder):
    return spool_in(folder)._address


@pytest.mark.parametrize("kind", ["pipe", "endless device", "file of another use", "hard link"])
def test_what_is_no_plain_file_is_never_opened_as_one(tmp_path, kind):
    """Any user may write into a shared folder: a pipe stopped the worker's start, a device filled its memory."""
    folder = tmp_path / "outbox"
    left_in(folder, 1)
    precious = tmp_path / "precious"
    precious.write_text("precious\n")
    path = folder / f"{_address(folder)}-{0:020}-1-aa.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "hard link":
        path.hardlink_to(precious)
    else:
        path.symlink_to("/dev/zero" if kind == "endless device" else precious)
    heir = spool_in(folder)
    assert numbers(heir.adopt(PLENTY)) == [1]
    assert precious.read_text() == "precious\n"
    assert os.path.lexists(path)
    assert list(folder.glob("quarantine*")) == []


def test_a_file_larger_than_any_outbox_writes_is_left_alone(tmp_path, caplog):
    left_in(tmp_path, 1)
    path = tmp_path / f"{_address(tmp_path)}-{0:020}-1-aa.jsonl"
    with path.open("wb") as file:
        file.truncate(10 << 30)  # takes no room on the disk, and does as a line in memory
    assert numbers(spool_in(tmp_path).adopt(PLENTY)) == [1]
    assert path.stat().st_size == 10 << 30
    assert str(path) in caplog.text
