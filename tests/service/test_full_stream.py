"""Emptying a full Redis needs no memory: the recorder does it with and without its group and dead letters."""

import pytest
import redis
from redis_servers import binaries, redis_server
from streams import append, entries_of, send

from tlp_service.errors import NotReady
from tlp_service.measurements import dead_letters
from tlp_service.measurements import recorder as recorder_module
from tlp_service.measurements.dead_letters import DEAD, letter_of
from tlp_service.measurements.recorder import Recorder
from tlp_service.measurements.stream import GROUP, STREAM
from tlp_service.records.store import RecordStore

FULL = ("--maxmemory", "6mb", "--maxmemory-policy", "noeviction")


@pytest.fixture(params=binaries())
def url(request):
    with redis_server(binaries()[request.param], *FULL) as (url, _):
        yield url


@pytest.fixture
def client(url):
    with redis.Redis.from_url(url, decode_responses=True) as client:
        yield client


@pytest.fixture
def recorder(url, tmp_path):
    recorder = Recorder(url, RecordStore.create(tmp_path / "store"), "one")
    yield recorder
    recorder.close()


def fill(url, lines):
    """Append until the server is full; return how many were acknowledged."""
    count = 0
    while True:
        try:
            count += len(append(url, entries_of(lines[:100], prefix=f"{count}-")))
        except NotReady:
            return count


def drain(client, recorder, limit=1000):
    for _ in range(limit):
        if not client.xlen(STREAM):
            return
        recorder.step()
    pytest.fail("the stream is not emptied")


@pytest.mark.parametrize("group", ["made with the stream", "missing"])
def test_a_full_stream_is_emptied_and_takes_measurements_again(url, client, recorder, measured_lines, group):
    count = fill(url, measured_lines)
    assert [found["name"] for found in client.xinfo_groups(STREAM)] == [GROUP]
    if group == "missing":  # a stream of an older release without a recorder
        client.xgroup_destroy(STREAM, GROUP)
        # The memory that this frees must not be enough.
        client.config_set("maxmemory", client.info("memory")["used_memory"] - 500_000)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.xgroup_create(STREAM, GROUP, id="0")
    assert client.xlen(STREAM) == count > 100
    drain(client, recorder)
    assert append(url, entries_of(measured_lines[:1], prefix="later")) == [0]


@pytest.mark.slow
def test_entries_that_are_no_records_do_not_keep_a_server_full(url, client, recorder, measured_lines):
    append(url, entries_of(["{"] * 3, prefix="bad"))
    fill(url, measured_lines)
    drain(client, recorder)
    assert client.xlen(DEAD) == 3


def test_dead_letters_that_cannot_be_kept_are_logged_and_the_rest_goes_on(
    url, client, recorder, measured_lines, caplog
):
    client.set(DEAD, "no stream")  # a key of the wrong type
    bad, _ = send(client, entries_of(["{", measured_lines[0]]))
    moved = recorder.step()
    assert (list(moved.dead), len(moved.records)) == ([bad], 1)
    assert client.xlen(STREAM) == 0
    assert client.xpending(STREAM, GROUP)["pending"] == 0
    assert f"entry {bad} of the measurement stream is not a valid record: " in caplog.text
    assert f"entry {bad} is not kept among the dead letters: " in caplog.text


@pytest.mark.parametrize("given", [False, True], ids=["new", "given before"])
def test_a_batch_is_bounded_in_bytes_too(client, recorder, measured_lines, monkeypatch, given):
    limit = 20_000
    monkeypatch.setattr(recorder_module, "_MAX_BATCH_BYTES", limit)
    entries = entries_of(measured_lines[:120])
    large = entries[7]._replace(record=measured_lines[7].replace("{", "{" + " " * 3 * limit, 1))
    send(client, [*entries[:7], large, *entries[8:]])
    if given:
        client.xgroup_create(STREAM, GROUP, id="0")
        client.xreadgroup(GROUP, "one", {STREAM: ">"}, count=200)
    batches = []
    while client.xlen(STREAM):
        batches.append([entry for entry, _ in recorder.step().records])
        assert recorder._is_behind == (len("".join("".join(e) for e in batches[-1])) > limit - 3000)
    assert [entry.id for batch in batches for entry in batch] == [str(n) for n in range(120)]
    sizes = [[len("".join(entry)) for entry in batch] for batch in batches]
    assert all(sum(batch[:-1]) < limit for batch in sizes)
    assert len(batches) > 3


def test_what_another_consumer_left_is_taken_over_in_bounded_batches(
    client, recorder, measured_lines, monkeypatch
):
    monkeypatch.setattr(recorder_module, "_MAX_BATCH_BYTES", 20_000)
    monkeypatch.setattr(recorder_module, "_CLAIM_S", 0.0)
    send(client, entries_of(measured_lines[:100]))
    client.xgroup_create(STREAM, GROUP, id="0")
    client.xreadgroup(GROUP, "gone", {STREAM: ">"}, count=200)
    batches = []
    while client.xlen(STREAM):
        batches.append([entry.id for entry, _ in recorder.step().records])
    assert [id_ for batch in batches for id_ in batch] == [str(n) for n in range(100)]
    assert len(batches) > 3


def test_an_entry_that_breaks_the_parser_keeps_no_other_from_the_store(
    client, recorder, measured_lines, monkeypatch, caplog
):
    ids = send(client, entries_of(measured_lines[:5]))
    parse = recorder._parser_of("").parse

    def breaking(line):
        if line == measured_lines[2]:
            raise RecursionError("maximum recursion depth exceeded")
        return parse(line)

    monkeypatch.setattr(recorder._parser_of(""), "parse", breaking)
    moved = recorder.step()
    assert moved.dead == {ids[2]: "it cannot be read: RecursionError"}
    assert len(moved.records) == 4
    assert client.xlen(STREAM) == 0


def test_memory_that_is_short_makes_no_record_a_dead_letter(client, recorder, measured_lines, monkeypatch):
    send(client, entries_of(measured_lines[:1]))

    def short(line):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(recorder._parser_of(""), "parse", short)
        with pytest.raises(MemoryError):
            recorder.step()
    recorder._takes_pending = True
    assert len(recorder.step().records) == 1


def test_a_dead_letter_of_many_megabytes_is_cut(client, recorder):
    fields = {"id": "a", "worker": "w", "platform": "epyc", "version": ""}
    client.config_set("maxmemory", 0)
    id_ = client.xadd(STREAM, {"record": "{" * (20 << 20), **fields})
    odd = client.xadd(STREAM, {f"field{n}": "x" * 100 for n in range(20_000)})
    assert [list(recorder.step().dead) for _ in range(2)] == [[id_], [odd]]  # the first fills a batch
    (_, letter), (_, odd_letter) = client.xrange(DEAD)
    assert letter["entry"] == id_
    assert int(letter["cut_from"]) == (20 << 20) + sum(len(n) + len(v) for n, v in fields.items()) + len(
        "record"
    )
    assert letter["record"] == "{" * len(letter["record"])
    for kept in (letter, odd_letter):
        assert sum(len(n) + len(v) for n, v in kept.items()) < 3 * dead_letters._MAX_LETTER_BYTES
    assert client.xlen(STREAM) == 0


def test_a_letter_that_fits_is_kept_whole():
    fields = {"record": "{", "platform": "", "odd\udcff": "\udcfe"}
    assert letter_of("1-0", fields, "no JSON", 1.5) == {
        b"record": b"{",
        b"platform": b"",
        b"odd\xff": b"\xfe",
        b"reason": b"no JSON",
        b"entry": b"1-0",
        b"time": b"1.500",
    }
