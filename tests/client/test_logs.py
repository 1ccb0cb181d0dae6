import gzip
from collections import Counter

from test_records import LINE, parse

from tlp_client.logs import LogReader, lines_of
from tlp_client.records import Record


def test_a_damaged_log_gives_its_good_lines_and_says_where_the_bad_ones_are(tmp_path):
    good = LINE.encode()
    cut = good[:-30]
    lines = [
        b"\xef\xbb\xbf" + good,
        b"# a comment",
        b"",
        cut,
        b"\x00" * 20,
        good + b"\r",
        b"\xff\xfe" + good,
        good,
    ]
    path = tmp_path / "log.json"
    path.write_bytes(b"\n".join(lines))  # the last line has no newline
    reader = LogReader()
    records = list(reader.read_file(path))
    assert records == [parse(LINE)] * 3
    assert [(r.source, r.number) for r in reader.refused] == [(str(path), 4), (str(path), 5), (str(path), 7)]
    assert [r.reason.split(":")[0] for r in reader.refused] == ["not JSON", "not JSON", "not UTF-8"]
    assert reader.counts == Counter(records=3, refused=3, comments=1)


def test_a_batch_of_64_with_one_cut_record_gives_63(measured_lines):
    lines = measured_lines[:64]
    lines[17] = lines[17][: len(lines[17]) // 3]
    reader = LogReader()
    outcomes = list(reader.read_lines(line.encode() for line in lines))
    assert sum(isinstance(o, Record) for _, o in outcomes) == 63
    assert [r.number for r in reader.refused] == [18]


def test_a_gzip_log_is_read_whatever_its_name(tmp_path):
    path = tmp_path / "log.json"
    path.write_bytes(gzip.compress(LINE.encode() * 1 + b"\n"))
    assert list(LogReader().read_file(path)) == [parse(LINE)]


def test_a_cut_gzip_log_gives_what_can_be_read(tmp_path, measured_lines):
    whole = gzip.compress("\n".join(measured_lines).encode())
    path = tmp_path / "log.json.gz"
    path.write_bytes(whole[: len(whole) // 2])
    reader = LogReader()
    records = list(reader.read_file(path))
    assert 0 < len(records) < len(measured_lines)
    assert "the rest cannot be read" in reader.refused[-1].reason


def test_what_is_written_after_a_cut_line_was_read_is_not_taken_for_a_line(tmp_path):
    path = tmp_path / "log.json"
    path.write_bytes(b"one\ntw")
    with path.open("rb") as file:
        lines = lines_of(file)
        assert [next(lines), next(lines)] == [b"one\n", b"tw"]
        with path.open("ab") as writer:
            writer.write(b"o\nthree\n")
        assert list(lines) == []


def test_an_empty_log_is_no_error(tmp_path):
    path = tmp_path / "log.json"
    path.write_bytes(b"")
    reader = LogReader()
    assert list(reader.read_file(path)) == []
    assert reader.refused == []
