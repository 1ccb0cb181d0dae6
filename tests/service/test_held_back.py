"""A platform that the record store refuses keeps no other waiting, and loses nothing.

Kind of fault: one refused item takes the others along.
"""

from collections import Counter

import pytest
from redis_servers import url_fixture
from stored import rows_of

from tlp_service.errors import NotAllStored
from tlp_service.measurements import held_back
from tlp_service.measurements import recorder as recorder_module
from tlp_service.measurements.entry_ids import after, before
from tlp_service.measurements.recorder import DEAD, GROUP, Recorder
from tlp_service.measurements.stream import STREAM, Entry
from tlp_service.records.reader import stored_records

url = url_fixture("valkey", "redis")


class Clock:
    s = 0.0

    def __call__(self):
        return self.s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def begun(url, client, store, clock):
    """Return a function that begins a recorder."""
    recorders = []

    def begin(name="one"):
        recorder = Recorder(url, store, name)
        recorder._held._clock = clock
        recorders.append(recorder)
        return recorder

    yield begin
    for recorder in recorders:
        recorder.close()


def send(client, lines, *platforms):
    """Send each line as a measurement of each platform, and return the ids by platform."""
    ids = {platform: [] for platform in platforms}
    for n, line in enumerate(lines):
        for platform in platforms:
            entry = Entry(f"{platform}-{n}", line, "w", platform, "")
            ids[platform].append(client.xadd(STREAM, entry._asdict()))
    return ids


def refuse(store, platform):
    """Put a file in the place of a platform's folder, and return it."""
    path = store.folder / f"platform={platform}"
    path.write_text("in the way")
    return path


def stored(store):
    return Counter(platform for platform, _ in stored_records(store))


def run_out(recorder, steps=40):
    """Make steps until nothing comes any more; return the records that were stored."""
    count = 0
    for _ in range(steps):
        moved = recorder.step()
        count += len(moved.records)
        if not moved.records and not moved.waiting:
            return count
    raise AssertionError("it goes on and on")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(recorder_module, "_WAIT_S", 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [2000, 4])
def test_others_are_stored_acknowledged_and_leave_the_stream(
    client, store, clock, begun, measured_lines, monkeypatch, caplog, batch
):
    monkeypatch.setattr(recorder_module, "_BATCH", batch)
    caplog.set_level("INFO")
    recorder = begun()
    path = refuse(store, "bad")
    ids = send(client, measured_lines[:9], "bad", "good", "other")
    assert run_out(recorder) == 18
    assert stored(store) == {"good": 9, "other": 9}
    assert [id_ for id_, _ in client.xrange(STREAM)] == ids["bad"]
    assert client.xpending(STREAM, GROUP)["pending"] == 9

    for _ in range(5):  # it is tried again, and more comes
        clock.s += 100
        run_out(recorder)
    ids["bad"] += send(client, measured_lines[9:12], "good", "bad")["bad"]
    run_out(recorder)
    assert stored(store) == {"good": 12, "other": 9}
    assert [id_ for id_, _ in client.xrange(STREAM)] == ids["bad"]
    assert [r.getMessage().split(":")[0] for r in caplog.records] == [
        "measurements of bad wait in the stream"
    ]

    path.unlink()
    run_out(recorder)
    assert stored(store)["bad"] == 0  # it is not tried all the time
    clock.s += 100
    run_out(recorder)
    assert stored(store) == {"good": 12, "other": 9, "bad": 12}
    assert sum(store.counts().values()) == 33
    assert (client.xlen(STREAM), client.xlen(DEAD)) == (0, 0)
    assert caplog.records[-1].getMessage() == "measurements of bad go to the record store again"
    send(client, measured_lines[12:14], "bad")
    assert run_out(recorder) == 2


@pytest.mark.parametrize("name", ["one", "two"], ids=["begun again", "another release"])
def test_what_is_held_back_outlives_its_recorder(client, store, begun, measured_lines, monkeypatch, name):
    """A recorder that knows nothing of holding back takes entries over as those of a dead consumer."""
    path = refuse(store, "bad")
    send(client, measured_lines[:5], "bad", "good")
    run_out(begun())
    path.unlink()
    if name == "two":
        monkeypatch.setattr(recorder_module, "_CLAIM_S", 0.0)
    assert run_out(begun(name)) == 5
    assert stored(store) == {"good": 5, "bad": 5}
    assert client.xlen(STREAM) == 0


def test_two_recorders_of_one_name_store_what_either_can(client, store, begun, measured_lines):
    """Such as on two machines, of which one cannot write a platform's folder."""
    one, other = begun(), begun()
    run_out(other)
    path = refuse(store, "bad")
    send(client, measured_lines[:5], "bad", "good")
    run_out(one)
    path.unlink()
    other.step()  # it learns of them
    assert run_out(other) == 5
    assert stored(store) == {"good": 5, "bad": 5}


@pytest.mark.slow
def test_platforms_are_tried_again_one_by_one(client, store, clock, begun, measured_lines, monkeypatch):
    monkeypatch.setattr(recorder_module, "_BATCH", 3)
    recorder = begun()
    paths = [refuse(store, platform) for platform in ("a", "b", "c")]
    send(client, measured_lines[:10], "a", "b", "c", "d")
    run_out(recorder)
    for n, path in enumerate(paths, 1):
        path.unlink()
        for _ in range(6):
            clock.s += 100
            run_out(recorder)
        assert sum(stored(store).values()) == 10 * (n + 1)
    assert (client.xlen(STREAM), sum(store.counts().values())) == (0, 40)


def test_with_too_many_refused_platforms_all_wait_and_others_are_stored(
    client, store, begun, measured_lines, monkeypatch
):
    monkeypatch.setattr(held_back, "_MAX_PLATFORMS", 3)
    platforms = [f"p{n}" for n in range(30)]
    paths = [refuse(store, platform) for platform in platforms]
    send(client, measured_lines[:1], *platforms, "good")
    recorder = begun()
    for _ in range(2):
        with pytest.raises(NotADirectoryError):
            recorder.step()
        recorder._takes_pending = True
    assert stored(store) == {"good": 1}
    for path in paths:
        path.unlink()
    assert run_out(recorder) == 30
    assert client.xlen(STREAM) == 0


def test_an_entry_that_is_no_record_is_told_while_its_platform_is_refused(
    client, store, clock, begun, measured_lines
):
    refuse(store, "bad")
    send(client, measured_lines[:2], "bad")
    send(client, ["{"], "bad")
    recorder = begun()
    run_out(recorder)
    send(client, ["{"], "bad")
    run_out(recorder)
    assert client.xlen(DEAD) == 1
    (store.folder / "platform=bad").unlink()
    clock.s += 100
    run_out(recorder)
    assert (client.xlen(DEAD), client.xlen(STREAM), stored(store)) == (2, 0, {"bad": 2})


def test_other_groups_keep_what_they_have_not_read_beside_what_is_held_back(
    client, store, begun, measured_lines
):
    client.xgroup_create(STREAM, "other", id="0", mkstream=True)
    refuse(store, "bad")
    send(client, measured_lines[:3], "bad", "good")
    run_out(begun())
    assert client.xlen(STREAM) == 6
    client.xgroup_destroy(STREAM, "other")


def test_a_store_writes_what_it_can_and_names_the_rest(store, measured_lines):
    refuse(store, "bad")
    with pytest.raises(NotAllStored, match="bad: ") as refused:
        store.append([rows_of(measured_lines[:1], platform) for platform in ("a", "bad", "z")])
    assert list(refused.value.reasons) == ["bad"]
    assert store.counts() == {"a": 1, "z": 1}


def test_ids_beside_an_id():
    last = 2**64 - 1
    assert [after("5-0"), after(f"5-{last}")] == ["5-1", "6-0"]
    assert [before("5-1"), before("5-0"), before("0-0")] == ["5-0", f"4-{last}", "0-0"]
