import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlp_client.dialects.dialect import Dialect
from tlp_client.errors import InvalidInput, InvalidRecord
from tlp_client.primitives import MAX_STEPS, Primitive
from tlp_client.records import (
    MAX_COSTS,
    MAX_LINE_BYTES,
    Record,
    RecordParser,
    read_record,
    split_primitives,
)

LINE = (
    '{"i": [["[\\"matmul\\", 128]", "llvm -keys=cpu", [18, 64, 64, 0, 0, 0, 0, 0], "", 2, []], '
    '[[], [["CI", 4], ["SP", 2, 0, 128, [4, 2, 4], 1], ["PR", 2, 0, "auto_unroll_max_step$0"]]]], '
    '"r": [[5.80388e-05, 6e-05], 0, 0.299169, 1603402396], "v": "v0.6"}'
)


def parse(line: str) -> Record:
    return RecordParser().parse(line)


def test_the_fields_of_a_record():
    record = parse(LINE)
    assert record.task.workload_key == '["matmul", 128]'
    assert record.task.target == "llvm -keys=cpu"
    assert record.primitives == (
        Primitive("CI", (4,)),
        Primitive("SP", (2, 0, 128, (4, 2, 4), 1)),
        Primitive("PR", (2, 0, "auto_unroll_max_step$0")),
    )
    assert record.costs == (5.80388e-05, 6e-05)
    assert (record.error_no, record.all_cost, record.timestamp) == (0, 0.299169, 1603402396)
    assert record.version == "v0.6"
    assert record.is_valid


def test_a_record_is_written_byte_for_byte(measured_lines, cuda_lines):
    parser = RecordParser()
    for line in (LINE, *measured_lines, *cuda_lines):
        assert parser.parse(line).to_line() == line


def test_parsing_by_pieces_equals_parsing_whole(measured_lines, cuda_lines, monkeypatch):
    monkeypatch.setattr(Dialect, "parse_line", None)  # which parses a whole line
    parser = RecordParser()
    for line in (LINE, *measured_lines, *cuda_lines):
        assert parser.parse(line) == read_record(json.loads(line))


def test_another_layout_of_the_same_json_is_the_same_record(measured_lines):
    for line in measured_lines[:10]:
        compact = json.dumps(json.loads(line), separators=(",", ":"))
        assert parse(compact) == parse(line)


def test_equal_primitives_of_one_parser_are_one_object():
    parser = RecordParser()
    first, second = parser.parse(LINE), parser.parse(LINE.replace('["CI", 4]', '["CI", 5]'))
    assert first.primitives[1] is second.primitives[1]
    assert first.task is second.task


def test_the_separator_inside_a_string_does_not_split_a_primitive():
    tricky = LINE.replace("auto_unroll_max_step$0", '], [\\"CI').replace('["CI", 4], ', "")
    assert parse(tricky).primitives[-1] == Primitive("PR", (2, 0, '], ["CI'))


def test_the_steps_mark_inside_the_workload_key_does_not_end_the_task():
    tricky = LINE.replace('\\"matmul\\"', '\\"], [[], [[\\\\\\"CI\\"')
    assert parse(tricky) == read_record(json.loads(tricky))


@pytest.mark.parametrize(
    ("version", "length"), [("v0.2", 2), ("v0.3", 3), ("v0.4", 4), ("v0.5", 5), ("v0.6", 6)]
)
def test_every_version_of_the_log_holds_the_same_schedule(version, length):
    document = json.loads(LINE)
    document["i"][0] = document["i"][0][:length]
    document["v"] = version
    old, new = parse(json.dumps(document)), parse(LINE)
    assert (old.primitives, old.costs, old.task.workload) == (new.primitives, new.costs, new.task.workload)
    assert json.loads(old.to_line()) == document


@pytest.mark.parametrize(
    ("costs", "error_no", "is_valid"),
    [
        ([0.001], 0, True),
        ([1e10], 4, False),
        ([0.001], 6, False),
        ([0.0], 0, False),
        ([-1e-9], 0, False),
        ([1e-12], 0, False),
        ([], 0, False),
        ([1e10], 0, False),
        ([489.0], 0, True),
        ([0.001, 0.0], 0, False),
    ],
)
def test_which_records_are_measurements(costs, error_no, is_valid):
    document = json.loads(LINE)
    document["r"][:2] = [costs, error_no]
    assert parse(json.dumps(document)).is_valid is is_valid


def changed(path, value):
    document = json.loads(LINE)
    place = document
    for key in path[:-1]:
        place = place[key]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (LINE[:150], "not JSON"),
        ("[1, 2]", "a record is a JSON object"),
        (changed(["i"], KeyError), "no 'i'"),
        (changed(["r"], KeyError), "no 'r'"),
        (changed(["v"], "v0.9"), "version 'v0.9' is not one of v0.2, v0.3"),
        (changed(["v"], KeyError), "version None"),
        (changed(["i"], [1]), "'i' is a list of two elements"),
        (changed(["i", 1], []), r"the state, i\[1\]"),
        (changed(["i", 1, 1, 1], ["PPT", 2, 0]), "primitive 1: unknown primitive kind 'PPT'"),
        (changed(["i", 1, 1, 2], []), "primitive 2: a primitive is a list"),
        (changed(["i", 0], ["a"]), "the task is a list of 2 to 6"),
        (changed(["r"], [1, 2, 3]), "'r' is a list of four elements"),
        (changed(["r", 0], 0.1), r"r\[0\], the costs, is a list"),
        (changed(["r", 0], [0.1, "x"]), r"r\[0\]\[1\], a cost, is a finite number in seconds, not 'x'"),
        (changed(["r", 0], [float("nan")]), r"r\[0\]\[0\].*not nan"),
        (changed(["r", 0], [float("inf")]), r"r\[0\]\[0\].*not inf"),
        (LINE.replace("5.80388e-05", "1e400"), r"r\[0\]\[0\].*not inf"),
        (changed(["r", 0], [True]), r"r\[0\]\[0\].*not True"),
        (changed(["r", 1], 9), "error number.*not 9"),
        (changed(["r", 1], "0"), "error number"),
        (changed(["r", 3], float("nan")), "timestamp"),
        ('{"input": [], "config": {}, "result": []}', "AutoTVM"),
        ("[" * 60_000, "nested too deeply|not JSON"),
    ],
)
def test_what_is_no_record_is_refused_with_its_reason(line, message):
    with pytest.raises(InvalidInput, match=message):
        parse(line)


def test_a_record_without_primitives_is_one():
    assert parse(LINE[: LINE.index('["CI"')] + ']]], "r": [[1.0], 0, 1, 1], "v": "v0.6"}').primitives == ()


def test_split_primitives_is_the_text_of_each_distinct_one(measured_lines):
    lines = [LINE, '{"i": [["w", "llvm"], [[], []]], "r": [[0], 0, 0, 0], "v": "v0.6"}', *measured_lines]
    primitives, candidates = split_primitives(lines)
    assert primitives[0] == '["CI", 4]'
    assert len(set(primitives)) == len(primitives)
    for line, candidate in zip(lines, candidates, strict=True):
        assert [json.loads(primitives[index]) for index in candidate] == json.loads(line)["i"][1][1]
    assert candidates[1] == []
    with pytest.raises(InvalidRecord):
        split_primitives([LINE, "{}"])


@given(st.integers(0, len(LINE)), st.integers(0, len(LINE)), st.text(max_size=4))
def test_any_damage_to_a_line_is_refused_or_read_alike_by_both_ways(start, length, inserted):
    line = LINE[:start] + inserted + LINE[start + length % 7 :]
    parser = RecordParser()
    try:
        record = parser.parse(line)
    except InvalidInput:
        return
    assert record == read_record(json.loads(line))


def record_of(key="k", steps=(), costs=(1,)):
    return {"i": [[key, "llvm"], [[], list(steps)]], "r": [list(costs), 0, 1, 1], "v": "v0.6"}


def of_bytes(length):
    """Return a record whose line has this number of bytes."""
    short = read_record(record_of("k")).to_line()
    return record_of("k" * (length - len(short) + 1))


def read_both(document):
    """Read a record as an object and as text, with the blanks of TVM and without any."""
    texts = [json.dumps(document), json.dumps(document, separators=(",", ":"))]
    return [read_record(document), *map(parse, texts)]


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (record_of(steps=[["CI", 4]] * MAX_STEPS), record_of(steps=[["CI", 4]] * (MAX_STEPS + 1)),
            "513 primitives are more than the 512"),
        (record_of(costs=[1] * MAX_COSTS), record_of(costs=[1] * (MAX_COSTS + 1)),
            r"r\[0\], the costs: 1001 are more than the 1000"),
        (record_of(steps=[["FFSP", 0, 0, [0] * 16, 1, 1]] * 64),
            record_of(steps=[["FFSP", 0, 0, [0] * 16, 1, 1]] * 65), "1040 sizes"),
        (of_bytes(MAX_LINE_BYTES), of_bytes(MAX_LINE_BYTES + 1), "65537 bytes, which are more than the 65536"),
    ],
    ids=["steps", "costs", "sizes", "bytes"],
)  # fmt: skip
def test_what_a_record_may_be_ends_exactly_at_its_bound(good, bad, message):
    for record in read_both(good):
        assert parse(record.to_line()) == record
    for read in (
        read_record,
        lambda document: parse(json.dumps(document)),
        lambda document: parse(json.dumps(document, separators=(",", ":"))),
    ):
        with pytest.raises(InvalidInput, match=message):
            read(bad)


def test_what_is_accepted_is_accepted_again_from_where_it_is_kept():
    """The stored line has blanks that the received one may lack.

    The recorder must not refuse what the server has accepted.
    """
    steps = [["RE", 0, list(range(120))]] * 140
    document = record_of(steps=steps)
    thrifty = json.dumps(document, separators=(",", ":"))
    assert len(thrifty) < MAX_LINE_BYTES < len(json.dumps(document))
    with pytest.raises(InvalidRecord, match="bytes, which are more than"):
        parse(thrifty)
    with pytest.raises(InvalidRecord, match="bytes, which are more than"):
        read_record(document)
    letters = record_of("é" * 40_000)  # bytes, not characters
    with pytest.raises(InvalidRecord, match="bytes, which are more than"):
        parse(json.dumps(letters, ensure_ascii=False))
