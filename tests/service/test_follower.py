import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future

import pytest
from models import write_linear_version
from serving import HANG_S, until_in_loop

from tlp_service import detached
from tlp_service.errors import NotReady, UnknownName, VersionGone
from tlp_service.monitoring import Metrics
from tlp_service.scoring.scorer import Scorer
from tlp_service.serving.follower import Follower
from tlp_service.serving.versions import Versions
from tlp_service.versions.registry import Registry


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "registry")


@pytest.fixture
def names(tmp_path, registry):
    """Three published versions, of which the first serves."""
    names = [
        registry.publish(write_linear_version(tmp_path / f"source-{n}", factor))
        for n, factor in enumerate((1.0, 2.0, 3.0))
    ]
    registry.activate(names[0], "test")
    return names


class Loader:
    """Loads versions while its gate is open, and fails as configured."""

    def __init__(self):
        self.asked = []
        self.during = {}  # version -> function that is called while it is loaded
        self.error = None
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, folder):
        self.asked.append(folder.name)
        self.during.pop(folder.name, lambda: None)()
        assert self.gate.wait(HANG_S)
        if self.error is not None:
            raise self.error
        return Scorer(folder)


@pytest.fixture
def loader():
    return Loader()


@pytest.fixture
def versions(registry, names):
    with registry.checkout(names[0]) as folder:
        return Versions(Scorer(folder))


@pytest.fixture
def follower(registry, versions, loader):
    return Follower(registry, versions, loader, kept=1, poll_s=30)


def test_what_is_dropped_is_freed_without_a_collection(registry, names, versions, follower):
    dropped = weakref.ref(versions.serving)
    gc.collect()
    gc.disable()
    try:
        for name in names[1:]:
            registry.activate(name, "test")
            follower.follow()
        assert dropped() is None
    finally:
        gc.enable()
    assert [s.manifest.version for s in versions.loaded] == [names[2], names[1]]


def test_a_request_goes_on_with_a_version_that_is_dropped_meanwhile(registry, names, versions, follower):
    scorer = versions.get(names[0])
    for name in names[1:]:
        registry.activate(name, "test")
        follower.follow()
    with pytest.raises(VersionGone):
        versions.get(names[0])
    with pytest.raises(UnknownName):
        versions.get("base-0")
    assert scorer.manifest.version == names[0]
    assert versions.get(None).manifest.version == names[2]


def test_a_version_that_is_loaded_already_is_not_loaded_again(registry, names, versions, follower, loader):
    for name in (names[1], names[0], names[1]):
        registry.activate(name, "test")
        follower.follow()
        follower.follow()
    assert loader.asked == [names[1]]
    assert versions.serving.manifest.version == names[1]


@pytest.mark.parametrize("error", [OSError("disk"), MemoryError()])
def test_what_is_no_fault_of_the_version_is_tried_again(
    registry, names, versions, follower, loader, error, caplog
):
    registry.activate(names[1], "test")
    loader.error = error
    follower.follow()
    follower.follow()
    assert len(caplog.records) == 1
    assert registry.journal().marks == {}
    loader.error = None
    follower.follow()
    assert versions.serving.manifest.version == names[1]


def test_a_fault_of_the_version_marks_it_and_all_return(registry, names, versions, follower, loader):
    registry.activate(names[1], "test")
    loader.error = RuntimeError("a shape that does not fit")  # as onnxruntime may raise in the warm-up
    follower.follow()
    assert versions.serving.manifest.version == names[0]
    assert registry.journal().active == names[0]
    assert "a shape that does not fit" in registry.journal().marks[names[1]].reason


def test_a_version_that_cannot_be_marked_is_not_tried_again(
    registry, names, versions, follower, loader, monkeypatch
):
    registry.activate(names[1], "test")
    loader.error = RuntimeError("broken")

    def refuse(*_):
        raise OSError("read-only")

    monkeypatch.setattr(registry._storage, "change", refuse)
    follower.follow()
    follower.follow()
    assert loader.asked == [names[1]]
    assert versions.serving.manifest.version == names[0]


def test_a_wake_is_heeded_though_the_poll_is_far(registry, names, versions, follower):
    swapped = threading.Event()
    versions.listen(lambda loaded: loaded[0].manifest.version == names[1] and swapped.set())
    follower.start(Metrics())
    try:
        registry.activate(names[1], "test")
        follower.wake()
        assert swapped.wait(HANG_S)
    finally:
        follower.stop()


def test_the_series_of_the_metrics_are_those_of_loaded_versions():
    metrics = Metrics()
    metrics.set_loaded([("base", "a"), ("base", "b")])
    metrics.count_scored("cpu", "a", 3)
    metrics.set_loaded([("base", "c"), ("base", "b")])
    metrics.count_scored("cpu", "a", 4)  # of a request that was under way
    metrics.count_scored("gpu", "c", 5)

    def samples(metric):
        return {
            tuple(s.labels.values()): s.value
            for family in metric.collect()
            for s in family.samples
            if not s.name.endswith("_created")
        }

    assert samples(metrics.model) == {("base", "c"): 1, ("base", "b"): 0}
    assert samples(metrics.candidates) == {("cpu", "other"): 4, ("gpu", "c"): 5}


@pytest.fixture
def following(follower, loader):
    """A running follower that does not poll for half a minute."""
    follower.start(Metrics())
    yield follower
    loader.gate.set()
    follower.stop()


@pytest.mark.anyio
async def test_a_version_that_is_not_loaded_yet_is_waited_for(registry, names, versions, following, loader):
    loader.gate.clear()
    registry.activate(names[1], "test")
    waiting = [asyncio.create_task(following.wait_for(names[1], HANG_S)) for _ in range(3)]
    await until_in_loop(
        lambda: loader.asked == [names[1]]
    )  # because of the request, since the next poll is far away
    assert not any(task.done() for task in waiting)
    assert not versions.has(names[1])
    loader.gate.set()
    assert await asyncio.gather(*waiting) == [True] * 3
    assert versions.has(names[1])
    assert await following.wait_for(names[1], HANG_S)


@pytest.mark.anyio
async def test_a_version_whose_loading_fails_is_waited_for_no_longer(registry, names, following, loader):
    loader.gate.clear()
    loader.error = RuntimeError("broken")
    registry.activate(names[1], "test")
    waiting = asyncio.create_task(following.wait_for(names[1], HANG_S))
    await until_in_loop(lambda: loader.asked == [names[1]])
    loader.gate.set()
    assert not await waiting
    assert not await following.wait_for(names[1], HANG_S)  # it is marked
    assert loader.asked == [names[1]]


@pytest.mark.anyio
async def test_a_version_that_fails_and_cannot_be_marked_is_not_waited_for(
    registry, names, following, loader, monkeypatch
):
    registry.activate(names[1], "test")
    loader.error = RuntimeError("broken")

    def refuse(*_):
        raise OSError("read-only")

    monkeypatch.setattr(registry._storage, "change", refuse)
    assert not await following.wait_for(names[1], HANG_S)
    assert not await following.wait_for(names[1], HANG_S)
    assert loader.asked == [names[1]]


@pytest.mark.anyio
async def test_who_waits_for_a_version_has_a_deadline(registry, names, following, loader):
    loader.gate.clear()
    registry.activate(names[1], "test")
    with pytest.raises(TimeoutError):
        await following.wait_for(names[1], 0.01)
    assert not following._arrivals._listeners


@pytest.mark.anyio
async def test_a_stop_sends_away_who_waits_for_a_version(registry, names, following, loader):
    loader.gate.clear()
    registry.activate(names[1], "test")
    waiting = asyncio.create_task(following.wait_for(names[1], HANG_S))
    await until_in_loop(lambda: loader.asked)
    following.drain()
    with pytest.raises(NotReady, match="stopping"):
        await waiting


@pytest.mark.anyio
async def test_versions_that_nobody_knows_are_refused_with_few_looks_at_the_registry(
    registry, names, following, loader, monkeypatch
):
    looks = []
    journal = registry.journal
    monkeypatch.setattr(registry, "journal", lambda: looks.append(None) or journal())
    for _ in range(3):
        waits = [following.wait_for(f"base-{number:012x}", HANG_S) for number in range(1000)]
        waits.append(following.wait_for(names[2], HANG_S))  # published but never active
        assert not any(await asyncio.gather(*waits))
    assert len(looks) <= 3 * 2 + 2  # and those when the thread starts
    assert loader.asked == []


@pytest.mark.anyio
async def test_a_look_that_began_before_the_request_is_not_enough(registry, names, following, monkeypatch):
    """A version that is activated while another request makes the server read the registry is not missed."""
    journal, is_reading, may_end = registry.journal, threading.Event(), threading.Event()

    def slow():
        read = journal()
        is_reading.set()
        assert may_end.wait(HANG_S)
        return read

    monkeypatch.setattr(registry, "journal", slow)
    junk = asyncio.create_task(following.wait_for("base-000000000000", HANG_S))
    await until_in_loop(is_reading.is_set)
    monkeypatch.setattr(registry, "journal", journal)
    registry.activate(names[1], "test")
    waiting = asyncio.create_task(following.wait_for(names[1], HANG_S))
    may_end.set()
    assert not await junk
    assert await waiting


@pytest.mark.anyio
async def test_the_active_version_is_loaded_before_earlier_ones(registry, names, versions, loader, tmp_path):
    fourth, fifth = (registry.publish(write_linear_version(tmp_path / str(n), n)) for n in (4.0, 5.0))
    for name in (names[2], names[1], names[0]):
        registry.activate(name, "test")
    following = Follower(registry, versions, loader, kept=4, poll_s=30)
    loader.gate.clear()
    loader.during[fourth] = lambda: registry.activate(fifth, "test")  # interrupts another cycle
    following.start(Metrics())
    try:
        await until_in_loop(lambda: loader.asked == [names[1]])  # kept for earlier rounds
        kept = asyncio.create_task(following.wait_for(names[2], HANG_S))
        await until_in_loop(following._woken.is_set)  # by the request
        registry.activate(fourth, "test")
        active = asyncio.create_task(following.wait_for(fourth, HANG_S))
        loader.gate.set()
        assert await active
        assert await kept
        assert loader.asked == [names[1], fourth, fifth, names[2]]
    finally:
        loader.gate.set()
        following.stop()


@pytest.mark.parametrize("damage", ["moved", "deleted", "cut"])
def test_a_registry_that_vanishes_is_said_once_and_so_is_its_return(
    registry, names, versions, follower, damage, caplog, tmp_path
):
    caplog.set_level("INFO")
    follower._metrics = metrics = Metrics()
    follower.follow()
    document = tmp_path / "registry" / "active.json"
    content = document.read_bytes()
    assert metrics.registry.get_sample_value("tlp_registry_reachable") == 1
    if damage == "moved":
        (tmp_path / "registry").rename(tmp_path / "elsewhere")
    elif damage == "deleted":
        document.unlink()
    else:
        document.write_bytes(b"{")
    for _ in range(3):
        follower.follow()
    assert metrics.registry.get_sample_value("tlp_registry_reachable") == 0
    (warning,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert f"can't be followed, version {names[0]} keeps serving" in warning
    assert versions.serving.manifest.version == names[0]
    if damage == "moved":
        (tmp_path / "elsewhere").rename(tmp_path / "registry")
    else:
        document.write_bytes(content)
    for _ in range(3):
        follower.follow()
    assert metrics.registry.get_sample_value("tlp_registry_reachable") == 1
    assert [r.getMessage() for r in caplog.records if "again" in r.getMessage()] == [
        "the registry can be followed again"
    ]
    registry.activate(names[1], "test")
    follower.follow()
    assert versions.serving.manifest.version == names[1]


@pytest.mark.anyio
async def test_a_registry_that_hangs_keeps_nobody_waiting(registry, names, following, monkeypatch):
    may_end, journal = threading.Event(), registry.journal
    monkeypatch.setattr("tlp_service.serving.arrivals._MAX_READ_S", 0.05)
    monkeypatch.setattr(registry, "journal", lambda: may_end.wait(HANG_S) and journal())
    try:
        assert not await following.wait_for(names[1], HANG_S)
        assert not await following.wait_for(names[1], HANG_S)
    finally:
        may_end.set()


def test_an_operation_that_nobody_waits_for_any_more_is_not_begun():
    future = Future()
    future.cancel()
    detached._run(lambda: pytest.fail("it was begun"), future)


def test_a_process_ends_though_an_operation_on_the_registry_hangs():
    script = (
        "import asyncio, threading\n"
        "from tlp_service.detached import detached\n"
        "async def main():\n"
        "    hung = asyncio.ensure_future(detached(threading.Event().wait))\n"
        "    print(await detached(lambda: 'done'))\n"
        "asyncio.run(main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=HANG_S
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
