"""Stream entries, stores and registries of earlier releases can be read and extended, and keep their meaning."""

import json
import shutil

import pytest
import redis
from forms import IDS, PLATFORM, RELEASES

from tlp_client.records import RecordParser
from tlp_service.measurements.embedded import embedded_redis
from tlp_service.measurements.recorder import DEAD, Recorder
from tlp_service.measurements.stream import STREAM
from tlp_service.records.reader import stored_records
from tlp_service.records.store import RecordStore
from tlp_service.versions.journal import Activation, Journal
from tlp_service.versions.manifest import read_manifest

pytestmark = pytest.mark.parametrize("release", RELEASES, ids=IDS)


def lines_in(store):
    return sorted(record.to_line() for platform, record in stored_records(store) if platform == PLATFORM)


def test_its_stream_entries_are_recorded_once(release, tmp_path):
    entries = release.json("stream_entries.json")
    store = RecordStore.create(tmp_path / "store")
    with (
        embedded_redis(tmp_path / "redis") as url,
        redis.Redis.from_url(url, decode_responses=True) as client,
    ):
        for _ in range(2):
            for entry in entries:
                client.xadd(STREAM, entry)
        recorder = Recorder(url, store, "one")
        try:
            while client.xlen(STREAM):
                recorder.step()
        finally:
            recorder.close()
        assert client.xlen(DEAD) == 0
    assert store.platforms == (PLATFORM,)
    parsed = [RecordParser().parse(entry["record"]) for entry in entries]
    found = [record for _, record in stored_records(store)]
    assert sorted(r.costs for r in found) == sorted(r.costs for r in parsed)
    assert {r.primitives for r in found} == {r.primitives for r in parsed}
    assert len(found) == len(entries)


def test_its_store_is_read_written_on_and_compacted(release, tmp_path):
    folder = tmp_path / "store"
    shutil.copytree(release.folder / "store", folder)
    store = RecordStore(folder)
    before = lines_in(store)
    assert len(before) == 3  # two compacted records, and a later one
    assert store.counts() == {PLATFORM: 3}
    entries = release.json("stream_entries.json")
    with (
        embedded_redis(tmp_path / "redis") as url,
        redis.Redis.from_url(url, decode_responses=True) as client,
    ):
        client.xadd(STREAM, entries[0])  # is in the store already
        new = {**entries[1], "record": entries[1]["record"].replace('"r": [[', '"r": [[7')}
        client.xadd(STREAM, new)
        recorder = Recorder(url, store, "one")
        recorder.step()
        recorder.close()
    after = lines_in(store)
    assert len(after) == 4
    assert set(before) < set(after)
    store.compact()
    assert lines_in(RecordStore(folder)) == after


def test_its_journal_is_read_and_written_on(release):
    encoded = release.bytes("registry/active.json")
    journal = Journal.decode(encoded)
    document = json.loads(encoded)
    assert journal.active == document["active"] == release.version.name
    assert [entry.version for entry in journal.history] == [e["version"] for e in document["history"]]
    assert list(journal.earlier()) == ["published-0123456789ab"]
    (mark,) = journal.marks.values()
    assert (mark.state, mark.reason, mark.figures) == ("rejected", "ranks worse", {"pair_accuracy": 0.5})
    later = Journal.decode(journal.activated(Activation("published-0123456789ab", "now", "x")).encode())
    assert later.history[:-1] == journal.history


def test_its_manifest_means_the_same(release):
    manifest = read_manifest(release.version)
    document = json.loads((release.version / "manifest.json").read_text())
    assert (manifest.model, manifest.version) == (document["model"], document["version"])
    assert [network.sha256 for network in manifest.networks] == [n["sha256"] for n in document["networks"]]
    assert manifest.platforms == {"epyc", "k80", "v100"}
