"""Stream entries, stores and registries of earlier releases can be read and extended, and keep their meaning."""

import hashlib
import json
import shutil

import pytest
import redis
from forms import FOLDER, IDS, PLATFORM, RELEASES
from stored import once, stored

from tlp_service.cli import main
from tlp_service.measurements.embedded import embedded_redis
from tlp_service.measurements.recorder import DEAD, Recorder
from tlp_service.measurements.stream import STREAM
from tlp_service.records.store import RecordStore
from tlp_service.versions.journal import Activation, Journal
from tlp_service.versions.manifest import read_manifest

of_each_release = pytest.mark.parametrize("release", RELEASES, ids=IDS)


def test_no_file_of_a_release_was_changed_added_or_removed():
    """The list has the form of ``sha256sum``."""
    listed = dict(line.split("  ")[::-1] for line in (FOLDER / "SHA256SUMS").read_text().splitlines())
    files = [path for release in RELEASES for path in release.folder.rglob("*") if path.is_file()]
    digests = {str(p.relative_to(FOLDER)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    assert digests == listed


@of_each_release
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
    sent = release.json("measurement_request.json")["records"]
    assert [entry["id"] for entry in entries] == [record["id"] for record in sent]
    assert [json.loads(entry["record"]) for entry in entries] == [record["record"] for record in sent]
    assert stored(store) == once(entry["record"] for entry in entries)


@of_each_release
def test_its_store_is_read_written_on_and_compacted(release, tmp_path):
    folder = tmp_path / "store"
    shutil.copytree(release.folder / "store", folder)
    store = RecordStore(folder)
    before = stored(store)
    assert store.counts() == {PLATFORM: 3}
    entries = release.json("stream_entries.json")
    # Two records in a compacted file, and in a part the first again with another cost.
    one, two = (entry["record"] for entry in entries)
    texts = [one, two, one.replace('"r": [[', '"r": [[1')]
    assert before == once(texts)
    ids = [hashlib.blake2b(text.encode(), digest_size=16, key=PLATFORM.encode()).digest() for text in texts]
    assert sorted(store.read(PLATFORM, ["id"])["id"].to_pylist()) == sorted(ids)
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
    after = stored(store)
    assert after == before + once([new["record"]])
    store.compact()
    assert stored(RecordStore(folder)) == after


@of_each_release
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


VERSIONS = [(release, folder) for release in RELEASES for folder in release.versions]
VERSION_IDS = [f"{release.folder.name} {folder.name.split('-')[0]}" for release, folder in VERSIONS]


@pytest.mark.parametrize(("release", "folder"), VERSIONS, ids=VERSION_IDS)
def test_its_manifests_mean_the_same(release, folder):
    """The networks and which of them scores a platform; `test_earlier_clients` compares their scores."""
    manifest = read_manifest(folder)
    document = json.loads((folder / "manifest.json").read_text())
    assert manifest.version == document["version"] == folder.name
    assert [network.sha256 for network in manifest.networks] == [n["sha256"] for n in document["networks"]]
    assert [network.files for network in manifest.networks] == [
        [n["file"]] + ([n["validity"]["file"]] if n["validity"] else []) for n in document["networks"]
    ]
    if folder.name.startswith("published-"):
        assert manifest.platforms == {"epyc", "k80", "v100"}
        chosen = {"epyc": "cpu.onnx", "an unknown one": "cpu.onnx"}
    else:
        assert manifest.platforms == {"epyc", "zen5"}
        chosen = {"epyc": "cpu.onnx", "zen5": "cpu-own-zen5.onnx", "an unknown one": "cpu.onnx"}
    assert {name: manifest.serving("cpu", name).file for name in chosen} == chosen


#: Versions of the model `loopnest`, which was called `base`.
LOOPNEST = [
    pytest.param(release, folder, id=id_)
    for (release, folder), id_ in zip(VERSIONS, VERSION_IDS, strict=True)
    if not folder.name.startswith("published-")
]


@pytest.mark.training
@pytest.mark.parametrize(("release", "folder"), LOOPNEST)
def test_a_training_begins_from_its_version(release, folder, tmp_path, capsys):
    """Networks of other platforms stay as they are; the weights fit into the network of this release."""
    log, store, out = (str(tmp_path / name) for name in ("log.json", "store", "out"))
    shutil.copyfile(FOLDER.parent / "measured.json", log)
    options = ("--store", store, "--platform", "new", "--seed", "4", "--processes", "1")
    assert main(["records", "import", log, *options]) == 0
    capsys.readouterr()
    options = ("--from", str(folder), "--records", store, "--out", out, "--epochs", "1")
    assert main(["train", *options]) == 0
    before, after = read_manifest(folder), read_manifest(tmp_path / capsys.readouterr().out.strip())
    assert after.networks[: len(before.networks)] == before.networks
    (own,) = after.networks[len(before.networks) :]
    assert (own.serves, own.platforms) == ("new", ["epyc", "zen5", "new"])
    assert own.architecture == before.networks[0].architecture
