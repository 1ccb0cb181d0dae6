import gc
import threading
import weakref

import pytest
from models import write_linear_version
from serving import HANG_S

from tlp_service.errors import UnknownName, VersionGone
from tlp_service.monitoring import Metrics
from tlp_service.scoring.follower import Follower
from tlp_service.scoring.scorer import Scorer
from tlp_service.scoring.versions import Versions
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
    """Loads versions, and fails as told."""

    def __init__(self):
        self.asked = []
        self.error = None

    def __call__(self, folder):
        self.asked.append(folder.name)
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

    monkeypatch.setattr(registry._place, "change", refuse)
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
