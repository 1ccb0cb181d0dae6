"""Versions that loop for ever, crash or take all memory are tried in a process of their own."""

import os
import signal
import threading

import pytest
from models import endless, endless_from, enormous, write_linear_version
from serving import until

from tlp_service.errors import BadVersion
from tlp_service.monitoring import Metrics
from tlp_service.scoring.scorer import Scorer
from tlp_service.serving.first import load_first
from tlp_service.serving.follower import Follower
from tlp_service.serving.loader import VersionLoader
from tlp_service.serving.versions import Versions
from tlp_service.settings import read_settings, shipped_model
from tlp_service.versions.registry import Registry

pytestmark = pytest.mark.slow

#: Seconds of processor time for a network that loops for ever; a good version needs less than one.
MAX_CPU_S = 5


@pytest.fixture(scope="module")
def stuck(tmp_path_factory):
    """A version whose networks hold a loop of 2^62 steps."""
    return write_linear_version(tmp_path_factory.mktemp("stuck"), spoil=endless)


def test_a_good_version_is_loaded_and_calibrated(linear_version):
    scorer = VersionLoader()(linear_version)
    assert scorer.manifest.version == linear_version.name
    calibration = VersionLoader(threads=2).calibrate(linear_version, chunk=48)
    assert calibration.chunk == 48
    assert calibration.executors * calibration.threads == 2


def test_a_damaged_version_keeps_its_reason(tmp_path):
    folder = write_linear_version(tmp_path)
    (folder / "cpu.onnx").write_bytes(b"cut")
    with pytest.raises(BadVersion, match="the file is damaged"):
        VersionLoader()(folder)


def test_a_network_that_never_returns_is_killed(stuck):
    with pytest.raises(BadVersion, match=f"did not end within {MAX_CPU_S} s of processor time"):
        VersionLoader(max_cpu_s=MAX_CPU_S)(stuck)


def test_a_network_that_never_returns_once_it_has_something_to_score_is_killed(tmp_path):
    folder = write_linear_version(tmp_path, spoil=endless_from(1.0))
    Scorer(folder)  # scores only candidates without primitives
    with pytest.raises(BadVersion, match="did not end within"):
        VersionLoader(max_cpu_s=MAX_CPU_S)(folder)


def test_a_network_that_takes_all_memory_is_refused(tmp_path):
    """It allocates 8 GiB, which would end the server on a machine with less."""
    with pytest.raises(BadVersion, match=f"a trial may allocate at most {4 << 30} bytes"):
        VersionLoader()(write_linear_version(tmp_path, spoil=enormous))


def trial_of(loader):
    until(lambda: loader._running)
    (process,) = loader._running
    return process


@pytest.mark.parametrize(
    ("number", "fault", "message"),
    [
        (signal.SIGSEGV, BadVersion, "crashes the process"),
        (signal.SIGABRT, BadVersion, "crashes the process"),
        (signal.SIGKILL, OSError, "was killed; the machine may be out of memory"),
        (signal.SIGTERM, OSError, "ended with status -15"),
    ],
)
def test_what_ends_the_trial_says_whose_fault_it_is(stuck, number, fault, message):
    loader = VersionLoader()
    threading.Thread(target=lambda: trial_of(loader).send_signal(number)).start()
    with pytest.raises(fault, match=message):
        loader(stuck)
    assert not loader._running


def test_a_loader_that_is_stopped_kills_the_trial_and_begins_no_other(stuck, linear_version):
    loader = VersionLoader()
    process = []

    def stop():
        process.append(trial_of(loader))
        loader.stop()

    threading.Thread(target=stop).start()
    with pytest.raises(OSError, match="stopping"):
        loader(stuck)
    assert process[0].returncode == -signal.SIGKILL
    with pytest.raises(OSError, match="stopping"):
        loader(linear_version)


def test_a_trial_ends_with_the_process_that_wants_it(stuck):
    """When the server is killed, the trial of a network that loops for ever ends, too."""
    loader = VersionLoader()
    ready, reader = os.pipe()[::-1]
    parent = os.fork()
    if parent == 0:
        process = loader._spawn(_endless_trial(stuck))
        os.write(ready, str(process.pid).encode())
        signal.pause()
    trial = int(os.read(reader, 20))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    until(lambda: not _is_running(trial))
    os.close(ready)
    os.close(reader)


def _endless_trial(folder):
    from tlp_service.serving.trial import Trial

    return Trial(str(folder), "cpu", 1, 600)


def _is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_next_activation_is_followed_after_one_that_never_returns(tmp_path, stuck, linear_version):
    registry = Registry(tmp_path / "registry")
    first = write_linear_version(tmp_path / "first", 3.0)
    for folder in (first, stuck, linear_version):
        registry.publish(folder)
    registry.activate(first.name, "test")
    loader = VersionLoader(max_cpu_s=MAX_CPU_S)
    versions = Versions(Scorer(first))
    follower = Follower(registry, versions, loader, kept=1, poll_s=0.05, give_up=loader.stop)
    follower.start(Metrics())
    try:
        registry.activate(stuck.name, "test")
        until(lambda: stuck.name in registry.journal().marks)
        mark = registry.journal().marks[stuck.name]
        assert (mark.state, registry.journal().active) == ("failed", first.name)
        assert "did not end within" in mark.reason
        registry.activate(linear_version.name, "test")
        until(lambda: versions.serving.manifest.version == linear_version.name)
    finally:
        follower.stop()
    assert not follower._thread.is_alive()


def test_a_start_passes_over_an_active_version_that_never_returns(
    tmp_path, stuck, linear_version, monkeypatch
):
    monkeypatch.setattr("tlp_service.serving.first.MAX_CPU_S", MAX_CPU_S)
    registry = Registry(tmp_path / "registry")
    for folder in (linear_version, stuck):
        registry.publish(folder)
        registry.activate(folder.name, "test")
    settings = read_settings(registry=str(tmp_path / "registry"), data_dir=tmp_path, chunk=16)
    scorer, _ = load_first(settings, registry)
    assert scorer.manifest.version == linear_version.name
    assert registry.journal().marks[stuck.name].state == "failed"


def test_a_start_marks_a_damaged_version_without_naming_its_place(tmp_path, linear_version, stuck):
    registry = Registry(tmp_path / "registry")
    for folder in (linear_version, stuck):
        registry.publish(folder)
        registry.activate(folder.name, "test")
    (tmp_path / "registry" / stuck.name / "cpu.onnx").write_bytes(b"cut")
    settings = read_settings(registry=str(tmp_path / "registry"), data_dir=tmp_path, chunk=16)
    assert load_first(settings, registry)[0].manifest.version == linear_version.name
    reason = registry.journal().marks[stuck.name].reason
    assert f": {stuck.name}/cpu.onnx: sha256 differs" in reason
    assert str(tmp_path) not in reason


def test_the_shipped_version_is_not_tried_at_a_start(tmp_path, monkeypatch):
    monkeypatch.setattr(VersionLoader, "_run", lambda *_: pytest.fail("it was tried"))
    registry = Registry(tmp_path / "registry")
    settings = read_settings(registry=str(tmp_path / "registry"), data_dir=tmp_path, chunk=16)
    assert load_first(settings, registry)[0].manifest.version == shipped_model().name
