"""The contract of every server of the measurement stream: the embedded Valkey, and Redis."""

import pytest
from redis_servers import url_fixture
from streams import append, asked, entries_of

from tlp_service.errors import NotReady
from tlp_service.measurements import stream as stream_module
from tlp_service.measurements.stream import GROUP, QUALITY, SEEN, STREAM, MeasurementStream

url = url_fixture("valkey", "redis", "outside")

WEEK_S = 7 * 86_400


def ids_in(client):
    return [fields["id"] for _, fields in client.xrange(STREAM)]


def test_entries_are_kept_whole_and_in_order(url, client, measured_lines):
    entries = entries_of([*measured_lines[:3], 'not JSON: "é€"\n'])
    assert append(url, entries) == [0, 1, 2, 3]
    # A field that an entry leaves empty need not be there.
    written = [{name: text for name, text in entry._asdict().items() if text} for entry in entries]
    assert [fields for _, fields in client.xrange(STREAM)] == written
    assert asked(url, MeasurementStream.length) == 4


def test_an_id_is_kept_once(url, client, measured_lines):
    first = entries_of(measured_lines[:3])
    assert append(url, [*first, first[1]]) == [0, 1, 2]
    assert append(url, first) == []
    again = first[0]._replace(record=measured_lines[9])  # the id decides, not the record
    assert append(url, [again, *entries_of(measured_lines[:1], prefix="new-"), first[2]]) == [1]
    assert ids_in(client) == ["0", "1", "2", "new-0"]


def test_an_id_is_remembered_for_a_week_though_its_entry_is_gone(url, client, measured_lines):
    append(url, entries_of(measured_lines[:1]))
    assert WEEK_S - 60 < client.ttl(f"{SEEN}0") <= WEEK_S
    client.xtrim(STREAM, maxlen=0, approximate=False)
    assert append(url, entries_of(measured_lines[:1])) == []
    client.delete(f"{SEEN}0")
    assert append(url, entries_of(measured_lines[:1])) == [0]


def test_many_entries_are_appended_in_several_calls(url, client, monkeypatch):
    monkeypatch.setattr(stream_module, "_RECORDS_A_CALL", 4)
    append(url, entries_of(["known"] * 2))
    assert append(url, entries_of(["line"] * 11)) == list(range(2, 11))
    assert ids_in(client) == [str(n) for n in range(11)]


def test_the_group_of_the_recorder_is_made_with_the_stream_and_reads_all_of_it(url, client):
    append(url, entries_of(["one"]))
    append(url, entries_of(["two"], prefix="later-"))
    ((_, given),) = client.xreadgroup(GROUP, "one", {STREAM: ">"})
    assert [fields["record"] for _, fields in given] == ["one", "two"]


def test_what_cannot_be_appended_leaves_no_id_behind(url, client, measured_lines):
    client.set(STREAM, "of another kind")
    with pytest.raises(NotReady, match="the measurement stream cannot be written"):
        append(url, entries_of(measured_lines[:3]))
    client.delete(STREAM)
    assert append(url, entries_of(measured_lines[:3])) == [0, 1, 2]


def test_the_write_probe_tries_the_commands_of_an_append_and_leaves_nothing(url, client):
    def reason(stream):
        return stream.probe.reason()

    assert asked(url, reason) is None
    assert list(client.scan_iter("{tlp}:*")) == []
    client.set(STREAM, "of another kind")
    assert asked(url, reason) is not None


def test_figures_of_prediction_error_are_what_was_told(url, client):
    assert asked(url, MeasurementStream.quality) is None
    client.set(QUALITY, '{"a": "é"}')
    assert asked(url, MeasurementStream.quality) == '{"a": "é"}'.encode()


def test_a_server_out_of_reach_is_not_ready(tmp_path):
    for ask in (MeasurementStream.length, MeasurementStream.quality, lambda s: s.append(entries_of(["x"]))):
        with pytest.raises(NotReady, match="the measurement stream cannot be"):
            asked(f"unix://{tmp_path}/nobody.sock", ask)
