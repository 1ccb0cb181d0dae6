"""The quarantine file is bounded, shared between processes, and not adopted by outboxes."""

import json
import multiprocessing
import os

import pytest

from tlp_client import locked_file, quarantine
from tlp_client.quarantine import Quarantine
from tlp_client.spool import Spool


def texts(path):
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def test_no_outbox_takes_it_for_its_own(tmp_path):
    spool = Spool(tmp_path, "http://x", None)
    spool.quarantine.add([{"id": "a", "line": "{}", "version": None, "worker": "w", "reason": "poison"}])
    # Outboxes, those of earlier releases too, adopt files that begin with their address.
    assert not spool.quarantine.path.name.startswith(spool._address)
    assert spool.adopt(2**30) == []


def test_it_is_bounded_and_keeps_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr(quarantine, "_MAX_BYTES", 1000)
    kept = Quarantine(tmp_path, "address")
    for n in range(200):
        kept.add([{"text": f"{n}"}])
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["quarantine-address.jsonl", "quarantine-address.old.jsonl"]
    assert all(file.stat().st_size <= 1000 for file in files)
    newest = texts(files[1]) + texts(files[0])
    assert newest == [f"{n}" for n in range(200 - len(newest), 200)]
    assert len(newest) > 15


def test_an_entry_larger_than_the_bound_is_kept_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(quarantine, "_MAX_BYTES", 100)
    kept = Quarantine(tmp_path, "address")
    kept.add([{"text": "x" * 200}])
    assert texts(kept.path) == ["x" * 200]


def _add(folder, prefix):
    for n in range(50):
        Quarantine(folder, "address").add([{"text": f"{prefix}-{n}"}])


def test_processes_add_to_it_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setattr(quarantine, "_MAX_TRIES", 10_000)  # however slow the machine is
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_add, args=(tmp_path, prefix)) for prefix in "abc"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    found = texts(tmp_path / "quarantine-address.jsonl")
    assert sorted(found) == sorted(f"{prefix}-{n}" for prefix in "abc" for n in range(50))


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe"])
def test_it_never_writes_through_a_link_or_into_a_pipe(tmp_path, kind):
    """Another user of a shared folder could have records appended to any file of this user, or lost."""
    precious = tmp_path / "precious"
    precious.write_text("precious\n")
    kept = Quarantine(tmp_path, "address")
    if kind == "pipe":
        os.mkfifo(kept.path)
    elif kind == "link":
        kept.path.symlink_to(precious)
    else:
        kept.path.hardlink_to(precious)
    with pytest.raises(OSError, match=r"quarantine-address\.jsonl"):
        kept.add([{"text": "x"}])
    assert precious.read_text() == "precious\n"


def test_a_disk_without_locks_is_said_at_once(tmp_path, monkeypatch):
    def no_locks(descriptor, operation):
        raise OSError(37, "No locks available")  # as NFS without a lock daemon does

    monkeypatch.setattr(locked_file.fcntl, "flock", no_locks)
    with pytest.raises(OSError, match="No locks available"):
        Quarantine(tmp_path, "address").add([{"text": "x"}])
