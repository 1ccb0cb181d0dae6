"""Kind of fault: what a refusal leaves is kept for ever.

Rejected versions of the trainer are bounded, and nothing else is deleted.
"""

import msgspec
import pytest
from models import write_linear_version

from tlp_service.learning import rejected
from tlp_service.learning.gate import Verdict
from tlp_service.learning.learn import _Learned, _publish
from tlp_service.versions.manifest import Manifest, read_manifest, write_version
from tlp_service.versions.registry import Registry


@pytest.fixture
def registry(registry_url):
    return Registry(registry_url)


@pytest.fixture
def version_of(tmp_path):
    """Return a function that makes a version like a step of learning does; each is other networks."""
    source = write_linear_version(tmp_path / "source")
    manifest = read_manifest(source)
    numbers = iter(range(10_000))

    def make(training):
        scale = 1.0 + next(numbers)
        networks = [
            msgspec.structs.replace(n, score_map=msgspec.structs.replace(n.score_map, scale=scale))
            for n in manifest.networks
        ]
        made = Manifest.of_now("published", networks, training)
        made = msgspec.structs.replace(
            made, created=f"2026-01-01T{int(scale) // 60:02}:{int(scale) % 60:02}:00"
        )
        return write_version(tmp_path / "made", made, {n.file: source / n.file for n in networks})

    return make


def judged(registry, folder, is_accepted=False):
    """Publish a version with a verdict, as the trainer does."""
    network = read_manifest(folder).networks[0]
    learned = _Learned("epyc", network, Verdict(is_accepted, "better" if is_accepted else "worse"))
    outcome = _publish(registry, registry.journal().active, folder, [learned])
    assert outcome.is_accepted == is_accepted
    return folder.name


def names(registry):
    return {held.manifest.version for held in registry.versions()}


def test_rejected_versions_are_bounded_and_nothing_else_is_deleted(registry, version_of, monkeypatch):
    monkeypatch.setattr(rejected, "MAX_REJECTED", 3)
    by_step = {"verdict": {"epyc": "…"}}
    of_people = [registry.publish(version_of(training)) for training in ({}, by_step)]
    registry.activate(of_people[0], by="me")
    marked = registry.publish(version_of({}))  # of no step of learning
    registry.mark(marked, "rejected", "by hand")
    failed = registry.publish(version_of(by_step))
    registry.mark(failed, "failed", "a server could not load it")
    accepted = judged(registry, version_of(by_step), is_accepted=True)
    forced = judged(registry, version_of(by_step))
    registry.activate(forced, by="me", force=True)
    registry.mark(forced, "rejected", "after all")  # which served lately
    assert registry.journal().active == accepted
    kept = {*of_people, marked, failed, accepted, forced}

    made = [judged(registry, version_of(by_step)) for _ in range(30)]
    assert names(registry) == kept | set(made[-3:])
    assert registry.journal().active == accepted
    assert registry.journal().marks.keys() == {marked, failed, forced, *made[-3:]}
    assert registry.rollback("me").active == of_people[0]


def test_what_cannot_be_deleted_is_a_warning_and_the_verdict_stands(
    registry, version_of, monkeypatch, caplog
):
    monkeypatch.setattr(rejected, "MAX_REJECTED", 0)
    registry.activate(registry.publish(version_of({})), by="me")

    def fails(*arguments, **options):
        raise OSError("Read-only file system")

    monkeypatch.setattr(registry, "prune", fails)
    made = judged(registry, version_of({"verdict": {}}))
    assert registry.journal().marks[made].state == "rejected"
    assert "rejected versions are not deleted: Read-only file system" in caplog.text
