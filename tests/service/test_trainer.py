"""When a step of learning is made, and that one process makes it. The step itself is in test_learn."""

import json
import threading
import time
from pathlib import Path

import pytest
import redis
from serving import HANG_S, until
from stored import rows_of

from tlp_client.records import RecordParser
from tlp_service.cli import main
from tlp_service.errors import BadSettings
from tlp_service.learning import learn as learn_module
from tlp_service.learning import standings as standings_module
from tlp_service.learning import trainer as trainer_module
from tlp_service.learning.lease import leased
from tlp_service.learning.outcome import Outcome
from tlp_service.learning.standings import REFUSED, TRAINED
from tlp_service.learning.trainer import LEASE, Trainer
from tlp_service.measurements.stream import QUALITY
from tlp_service.processes.server import _wants_trainer
from tlp_service.records.reader import stored_records
from tlp_service.settings import read_settings
from tlp_service.versions.registry import Registry


@pytest.fixture
def steps(monkeypatch):
    """A fake of the training step, which notes that it was called and holds the lease meanwhile."""
    made = []

    def learn(store, registry, platforms, may_publish):
        assert may_publish()
        made.append({platform: store.counts()[platform] for platform in platforms})
        return Outcome(None, True, "made up")

    monkeypatch.setattr(learn_module, "learn", learn)
    return made


def add(store, line, count, platform="epyc"):
    marks = [f"{time.time_ns()}-{n}" for n in range(count)]
    store.append([rows_of([line] * count, platform, marks)])


def trainer_of(url, store, tmp_path, records=10, seconds=1e6):
    return Trainer(url, store, Registry(tmp_path / "models"), records, seconds)


def test_records_that_were_counted_twice_are_not_waited_for(
    url, client, store, tmp_path, steps, measured_lines
):
    trainer = trainer_of(url, store, tmp_path)
    add(store, measured_lines[0], 10)
    client.hset(TRAINED, "epyc", 5000)
    assert not trainer.look()
    add(store, measured_lines[0], 10)
    assert trainer.look()
    assert client.hget(TRAINED, "epyc") == "20"


def test_a_step_is_made_at_so_many_new_records(url, client, store, tmp_path, steps, measured_lines):
    trainer = trainer_of(url, store, tmp_path)
    assert not trainer.look()
    add(store, measured_lines[0], 9)
    assert not trainer.look()
    add(store, measured_lines[0], 1)
    assert trainer.look()
    assert not trainer.look()
    add(store, measured_lines[0], 10)
    # Another one, on another machine, knows of the last step.
    assert trainer_of(url, store, tmp_path).look()
    assert steps == [{"epyc": 10}, {"epyc": 20}]
    trainer.close()


def test_each_platform_learns_when_enough_was_measured_on_it(
    url, client, store, tmp_path, steps, measured_lines
):
    trainer = trainer_of(url, store, tmp_path)
    for platform, count in (("epyc", 9), ("k80", 10), ("v100", 12)):
        add(store, measured_lines[0], count, platform)
    # One at a time, the one with the largest gain first, since another may gain more by then.
    assert trainer.look()
    add(store, measured_lines[0], 2, "epyc")
    assert trainer.look()
    assert trainer.look()
    assert not trainer.look()
    assert steps == [{"v100": 12}, {"epyc": 11}, {"k80": 10}]
    trainer.close()


def test_where_the_serving_versions_error_drifts_fewer_are_enough(
    url, client, store, tmp_path, steps, measured_lines
):
    trainer = trainer_of(url, store, tmp_path, records=100)
    add(store, measured_lines[0], 25, "epyc")
    add(store, measured_lines[0], 25, "k80")
    told = {
        "epyc": {
            "base-1": {"measured": 25, "serving": True, "drifting": True},
            "base-0": {"measured": 25, "serving": False, "drifting": False},
        },
        "k80": {
            "base-1": {"measured": 25, "serving": True, "drifting": None},
            "base-0": {"measured": 25, "serving": False, "drifting": True},
        },
    }
    client.set(QUALITY, b"\xff")  # no document: nothing is known to drift
    assert not trainer.look()
    client.set(QUALITY, json.dumps({"platforms": told}))
    assert trainer.look()
    assert steps == [{"epyc": 25}]
    assert not trainer.look()
    trainer.close()


def test_fewer_are_enough_after_a_time_and_none_never_is(url, client, store, tmp_path, steps, measured_lines):
    trainer = trainer_of(url, store, tmp_path, seconds=0.05)
    time.sleep(0.06)
    assert not trainer.look()
    add(store, measured_lines[0], 1)
    assert trainer.look()
    assert not trainer.look()
    trainer.close()


def test_two_trainers_never_train_the_same(url, client, store, tmp_path, monkeypatch, measured_lines):
    inside, go_on, made = threading.Event(), threading.Event(), []

    def learn(store, registry, platforms, may_publish):
        made.append(1)
        inside.set()
        assert go_on.wait(HANG_S)
        return Outcome(None, False, "made up")

    monkeypatch.setattr(learn_module, "learn", learn)
    add(store, measured_lines[0], 10)
    first, second = (trainer_of(url, store, tmp_path) for _ in range(2))
    thread = threading.Thread(target=first.look)
    thread.start()
    assert inside.wait(HANG_S)
    assert not second.look()
    go_on.set()
    thread.join()
    assert not second.look()
    assert made == [1]
    first.close()
    second.close()


def learning(monkeypatch, outcome_of):
    """Replace the step by a function of the platform's name; return the list of names it is called with."""
    asked = []

    def learn(store, registry, platforms, may_publish):
        (platform,) = platforms
        asked.append(platform)
        return outcome_of(platform)

    monkeypatch.setattr(learn_module, "learn", learn)
    return asked


@pytest.mark.parametrize("state", ["put off", "unreadable"])
def test_what_is_not_about_a_platform_is_not_noted(
    url, client, store, tmp_path, monkeypatch, measured_lines, caplog, state
):
    """Progress must not be noted before the work is done.

    For example, the registry is empty for a moment, or a file can't be read.
    """
    caplog.set_level("INFO", "tlp_service")
    trainer = trainer_of(url, store, tmp_path)
    add(store, measured_lines[0], 10)
    learning(monkeypatch, lambda platform: Outcome(None, False, "no version serves", state))
    for _ in range(3):
        assert not trainer.look()
        assert (client.hgetall(TRAINED), client.hgetall(REFUSED)) == ({}, {})
    assert sum("no version serves" in r.getMessage() for r in caplog.records) == 1
    learning(monkeypatch, lambda platform: Outcome("v", True, "better"))
    assert trainer.look()
    assert (client.hgetall(TRAINED), client.hgetall(REFUSED)) == ({"epyc": "10"}, {})
    trainer.close()


def test_a_verdict_of_a_trainer_whose_lease_is_lost_is_not_noted(
    url, client, store, tmp_path, monkeypatch, measured_lines
):
    trainer = trainer_of(url, store, tmp_path)
    for platform in ("a", "b"):
        add(store, measured_lines[0], 10, platform)

    def lose(platform):
        client.delete(LEASE)
        return Outcome(None, False, "worse", "refused")

    asked = learning(monkeypatch, lose)
    assert not trainer.look()
    assert (asked, client.hgetall(TRAINED)) == (["a"], {})
    trainer.close()


@pytest.mark.slow
@pytest.mark.parametrize("state", ["refused", "failed", "judged"])
def test_a_crowd_does_not_keep_an_honest_platform_from_learning(
    url, client, store, tmp_path, monkeypatch, measured_lines, state
):
    """One refused platform must not affect the others: 67 platforms at once, more than one network distinguishes."""
    trainer = trainer_of(url, store, tmp_path, records=4)
    for n in range(66):
        add(store, measured_lines[0], 4, f"junk{n:02}")
    asked = learning(
        monkeypatch,
        lambda p: Outcome("v", True, "better") if p == "honest" else Outcome(None, False, "worse", state),
    )
    assert trainer.look()
    add(store, measured_lines[0], 6, "honest")
    assert trainer.look()
    assert trainer.look()
    assert "honest" in asked
    assert client.hget(TRAINED, "honest") == "6"
    # Only the refused platforms were noted, one by one.
    assert set(client.hgetall(TRAINED)) == set(asked)
    assert set(client.hgetall(REFUSED)) == set(asked) - {"honest"}
    # After everyone's turn, four more records are enough for the honest platform only.
    while trainer.look():
        pass
    assert len(asked) == 67
    for platform in [f"junk{n:02}" for n in range(66)] + ["honest"]:
        add(store, measured_lines[0], 4, platform)
    assert trainer.look()
    assert asked[67:] == ["honest"]
    assert not trainer.look()
    trainer.close()


@pytest.mark.parametrize("unreadable_at", ["the count", "the step"])
def test_platforms_that_cannot_be_read_do_not_stop_the_others(
    url, client, store, tmp_path, monkeypatch, measured_lines, unreadable_at
):
    """However many they are."""
    monkeypatch.setattr(trainer_module, "_MAX_LOOKED_AT", 2)
    trainer = trainer_of(url, store, tmp_path)
    for platform in ("a0", "a1", "a2", "a3", "b"):
        add(store, measured_lines[0], 10, platform)
    read = store.read

    def fails(platform, columns=None):
        if platform != "b":
            raise OSError("damaged")
        return read(platform, columns)

    def outcome_of(platform):
        if platform != "b":
            return Outcome(None, False, "its records cannot be read", "unreadable")
        return Outcome("v", True, "better")

    learning(monkeypatch, outcome_of)
    if unreadable_at == "the count":
        monkeypatch.setattr(store, "read", fails)
    assert [trainer.look() for _ in range(4)] == [False, False, True, False]
    assert client.hgetall(TRAINED) == {"b": "10"}
    trainer.close()


def test_a_platform_on_which_a_trainer_was_killed_comes_last(
    url, client, store, tmp_path, monkeypatch, measured_lines
):
    """For example because its records need more memory than the machine has."""
    for platform, count in (("a", 12), ("b", 10)):
        add(store, measured_lines[0], count, platform)

    def killed(platform):
        raise SystemExit

    asked = learning(monkeypatch, killed)
    for _ in range(2):
        trainer = trainer_of(url, store, tmp_path)
        with pytest.raises(SystemExit):
            trainer.look()
        trainer.close()
    assert asked == ["a", "b"]


def test_rows_that_the_stream_delivered_twice_are_no_new_records(
    url, client, store, tmp_path, steps, measured_lines
):
    """Redelivery must be idempotent in the counts as in the store."""
    trainer = trainer_of(url, store, tmp_path)
    table = rows_of(measured_lines[:1] * 10, marks=list("0123456789"))
    store.append([table])
    assert trainer.look()
    store.append([table])
    assert store.counts() == {"epyc": 20}
    assert not trainer.look()
    assert (len(steps), client.hget(TRAINED, "epyc")) == (1, "10")
    add(store, measured_lines[0], 10)
    assert trainer.look()
    assert client.hget(TRAINED, "epyc") == "20"
    trainer.close()


def test_damaged_notes_stop_no_trainer(url, client, store, tmp_path, steps, measured_lines):
    """Notes of progress must be validated when they are read."""
    trainer = trainer_of(url, store, tmp_path)
    add(store, measured_lines[0], 10)
    client.hset(TRAINED, mapping={"epyc": "many", "k80": "-1", "v100": "9" * 30, "": "\u0663"})
    client.hset(REFUSED, mapping={"epyc": "1e9"})
    client.rpush(QUALITY, "no text")
    assert trainer.look()
    assert client.hget(TRAINED, "epyc") == "10"
    for told in (b"[" * 100_000, b'{"platforms": {"epyc": {"v": {"measured": 1}}}}', b"\xff\xfe"):
        client.delete(QUALITY)
        client.set(QUALITY, told)
        add(store, measured_lines[0], 10)
        assert trainer.look()
    trainer.close()


@pytest.mark.slow
def test_notes_are_bounded(url, client, store, tmp_path, steps, monkeypatch, measured_lines):
    """Ten times the bound: the platforms with the most records stay."""
    monkeypatch.setattr(standings_module, "_MAX_PLATFORMS", 4)
    trainer = trainer_of(url, store, tmp_path, records=1)
    for n in range(40):
        add(store, measured_lines[0], n + 1, f"p{n:02}")
        trainer.look()
        assert client.hlen(TRAINED) <= 5
        assert len(trainer._standings._distinct) <= 4
        assert len(trainer._standings._learned_s) <= 4
    trainer.look()
    assert client.hgetall(TRAINED).keys() >= {"p39", "p38"}
    trainer.close()


def test_once_is_for_all_that_are_due(url, client, store, tmp_path, monkeypatch, measured_lines):
    for platform in ("a", "b", "c"):
        add(store, measured_lines[0], 10, platform)
    asked = learning(
        monkeypatch, lambda p: Outcome(None, False, "worse", "refused" if p == "b" else "judged")
    )
    monkeypatch.setenv("TLP_REDIS_URL", url)
    monkeypatch.setenv("TLP_RECORDS", str(store.folder))
    monkeypatch.setenv("TLP_REGISTRY", str(tmp_path / "models"))
    monkeypatch.setenv("TLP_TRAIN_RECORDS", "10")
    monkeypatch.setattr("os.nice", lambda by: 0)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    assert main(["trainer", "--once"]) == 0
    assert asked == ["a", "b", "c"]
    assert client.hgetall(TRAINED) == {"a": "10", "b": "10", "c": "10"}


def test_a_lease_falls_to_the_next_and_the_last_holder_knows(client):
    with leased(client, LEASE) as lease:
        assert lease.is_held()
        with leased(client, LEASE) as other:
            assert other is None
        client.delete(LEASE)  # as if its time had run out while this process stood still
        with leased(client, LEASE) as next_:
            assert next_.fence > lease.fence
            assert not lease.is_held()
            assert next_.is_held()
    assert client.get(LEASE) is None


@pytest.mark.slow
def test_a_lease_is_renewed_as_long_as_it_is_held(client):
    with leased(client, LEASE, seconds=9):
        before = client.pttl(LEASE)
        until(lambda: client.pttl(LEASE) < before - 500)
        until(lambda: client.pttl(LEASE) > before - 500)
        with leased(client, LEASE) as other:
            assert other is None


@pytest.mark.parametrize(
    ("given", "has_torch", "wanted"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"trainer": False}, True, False),
        ({"trainer": True, "redis_url": "redis://far"}, True, True),
        ({"redis_url": "redis://far"}, True, False),
        ({"model": Path("base-1")}, True, False),
    ],
)
def test_a_server_with_a_stream_and_a_registry_of_its_own_learns_unless_told_not_to(
    monkeypatch, given, has_torch, wanted
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if has_torch else None)
    assert _wants_trainer(read_settings(**given)) == wanted


def test_a_server_that_is_told_to_learn_without_torch_does_not_start(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadSettings, match=r"TLP_TRAINER=1: there is no torch"):
        _wants_trainer(read_settings(trainer=True))


def test_one_look_without_redis_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TLP_REDIS_URL", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("TLP_DATA_DIR", str(tmp_path))
    monkeypatch.setattr("tlp_service.records.store.RecordStore.counts", lambda store: {"epyc": 1000})
    monkeypatch.setattr("os.nice", lambda by: 0)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    assert main(["trainer", "--once"]) == 2
    assert capsys.readouterr().err.startswith("tlp trainer: TLP_REDIS_URL: ")


def test_what_cannot_be_reached_is_tried_again(url, store, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(trainer_module, "_LOOK_S", 0.01)
    trainer, stopping, faults = (
        trainer_of(url, store, tmp_path),
        threading.Event(),
        [redis.ConnectionError("away"), OSError("full")],
    )

    def look():
        if faults:
            raise faults.pop()
        stopping.set()

    monkeypatch.setattr(trainer, "look", look)
    trainer.run(stopping)
    assert [r.getMessage() for r in caplog.records] == [
        "nothing is learned now: full",
        "nothing is learned now: away",
    ]
    trainer.close()


def test_what_goes_on_failing_is_tried_again_after_longer_and_longer(
    url, client, store, tmp_path, monkeypatch, measured_lines
):
    """Kind of fault: work that is done again and again for nothing.

    A full disk of the registry is found after the training.
    """
    add(store, measured_lines[0], 10)
    trainer, waited, is_full = trainer_of(url, store, tmp_path), [], [True]

    def outcome_of(platform):
        if is_full:
            raise OSError(28, "No space left on device")
        return Outcome("v", True, "better")

    learning(monkeypatch, outcome_of)

    class Stops(threading.Event):
        def wait(self, timeout=None):
            waited.append(timeout)
            if len(waited) == 9:
                is_full.clear()
            return len(waited) > 10

    trainer.run(Stops())
    assert waited == [5, 10, 20, 40, 80, 160, 300, 300, 300, 5, 5]
    trainer.close()


def test_of_many_records_old_ones_stay_in_the_mix(store, measured_lines):
    rows = [RecordParser().parse(line) for line in measured_lines[:40]]
    store.append([rows_of(measured_lines[:40], "many", [f"{n:02}" for n in range(40)])])
    found = [record.primitives for _, record in stored_records(store, ["many"], max_records=20)]
    places = [[r.primitives for r in rows].index(primitives) for primitives in found]
    assert places[10:] == list(range(30, 40))
    assert (len(places), places[:10]) == (20, sorted(set(places[:10])))
    assert max(places[:10]) < 30
    assert len(list(stored_records(store, ["many"], max_records=40))) == 40


def test_without_torch_a_trainer_says_so_at_its_start(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["trainer"]) == 2
    assert "No module named 'torch'; install 'tlp-service[service,cpu,train]'" in capsys.readouterr().err
