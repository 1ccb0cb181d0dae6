"""The wire format. The files in golden/ pin its bytes: a change of one is a change of the format."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlp_client.errors import BadAnswer, InvalidRequest, UnknownField, UnknownFormat, Unsupported
from tlp_client.primitives import Primitive
from tlp_client.records import RecordParser
from tlp_client.tasks import Task
from tlp_client.wire.measurements import (
    decode_measurement_answer,
    encode_measurements,
    measurement_id,
    read_measurements,
)
from tlp_client.wire.predict import decode_predict_answer, encode_predict, read_predict

GOLDEN = Path(__file__).parent / "golden"
TASK = Task('["matmul", 128]', "llvm -keys=cpu")
STEPS = ['["CI", 4]', '["SP", 2, 0, 128, [4, 2, 4], 1]', '["PR", 2, 0, "auto_unroll_max_step$0"]']
RECORD = (
    '{"i": [["[\\"matmul\\", 128]", "llvm -keys=cpu"], [[], [["CI", 4]]]], '
    '"r": [[5.80388e-05], 0, 0.299169, 1603402396], "v": "v0.6"}'
)


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes().rstrip(b"\n")


def test_the_bytes_of_a_predict_request():
    body = encode_predict(
        TASK, STEPS, [[0, 1, 2], [1], []], platform="epyc", version="published-0123456789ab"
    )
    assert body == golden("predict_request.json")


def test_the_bytes_of_a_measurement_request():
    body = encode_measurements([("w-1", RECORD)], worker="host-7", platform="epyc", version=None)
    assert body == golden("measurement_request.json")


def test_a_predict_request_is_read_as_it_was_written():
    request = read_predict(json.loads(golden("predict_request.json")))
    assert (request.workload_key, request.target) == ('["matmul", 128]', "llvm -keys=cpu")
    assert (request.platform, request.version, request.report_invalid) == (
        "epyc",
        "published-0123456789ab",
        True,
    )
    assert request.primitives[0] == Primitive("CI", (4,))
    np.testing.assert_array_equal(request.indices, [0, 1, 2, 1])
    np.testing.assert_array_equal(request.lengths, [3, 1, 0])
    assert request.errors == {}


def test_nested_candidates_say_the_same():
    document = json.loads(golden("predict_request.json"))
    steps = document.pop("primitives")
    document["candidates"] = [[steps[i] for i in candidate] for candidate in document["candidates"]]
    nested, indexed = read_predict(document), read_predict(json.loads(golden("predict_request.json")))
    assert nested.primitives == indexed.primitives
    np.testing.assert_array_equal(nested.indices, indexed.indices)
    np.testing.assert_array_equal(nested.lengths, indexed.lengths)


def test_a_measurement_request_is_read_as_it_was_written():
    request = read_measurements(json.loads(golden("measurement_request.json")))
    assert (request.worker, request.platform, request.version) == ("host-7", "epyc", None)
    (measurement,) = request.measurements
    assert measurement.id == "w-1"
    assert measurement.record.to_line() == RECORD


def document(**changes):
    base = {
        "format": 1,
        "task": {"workload_key": "[]", "target": "llvm"},
        "primitives": [["CI", 1], ["CI", 2]],
        "candidates": [[0], [1, 0]],
    }
    return {**base, **changes}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "the body: a JSON object is needed"),
        (document(format=2), "format: this is wire format 1, not 2"),
        (document(format=True), "format"),
        (document(spare=1), "unknown field 'spare'"),
        (document(task=None), "task: a JSON object is needed"),
        (document(task={"target": "llvm"}), "task.workload_key"),
        (document(task={"workload_key": "[]", "target": " "}), "task.target"),
        (document(task={"workload_key": "[]", "target": "llvm", "platform": "a b"}), "task.platform"),
        (document(version=7), "version: 1 to 128 letters"),
        (document(on_invalid="ignore"), "on_invalid: 'reject' or 'report'"),
        (document(validity=1), "validity: true or false, not 1"),
        (document(candidates=[]), "candidates: a list of one or more"),
        (document(candidates={"a": 1}), "candidates: a list of one or more"),
        (document(primitives="CI"), "primitives: a list"),
        (
            document(candidates=[[0], [2]]),
            r"candidates\[1\], primitive 0: index 2 is out of range, there are 2",
        ),
        (document(candidates=[[0], [-1]]), r"candidates\[1\], primitive 0: index -1 is out of range"),
        (document(candidates=[[0], [0, 10**30]]), r"candidates\[1\], primitive 1: index 10+ is out of range"),
        (document(candidates=[[0], [0, True]]), r"candidates\[1\], primitive 1: .* is an integer, not True"),
        (document(candidates=[[0], [0, 1.0]]), r"candidates\[1\], primitive 1: .* is an integer, not 1.0"),
        (document(candidates=[[0], 0]), r"candidates\[1\]: a candidate is a list"),
        (document(candidates=[[0], "01"]), r"candidates\[1\]: a candidate is a list"),
        (
            document(primitives=[["CI", 1], ["PPT", 2]]),
            r"candidates\[1\], primitive 0 \(primitives\[1\]\): unknown primitive kind 'PPT'",
        ),
        (
            document(primitives=None, candidates=[[["CI", 1]], [["CI", 1], ["CI"]]]),
            r"candidates\[1\], primitive 1: CI takes 1 arguments, not 0",
        ),
        (document(primitives=None, candidates=[[["CI", 1]], 5]), r"candidates\[1\]: a candidate is a list"),
    ],
)
def test_a_predict_request_that_breaks_the_format_is_refused_by_its_place(body, message):
    with pytest.raises(InvalidRequest, match=message):
        read_predict(body)


def test_with_report_only_the_invalid_candidates_get_errors():
    request = read_predict(
        document(
            on_invalid="report",
            primitives=[["CI", 1], ["PPT", 2], ["CI", 3]],
            candidates=[[0, 2], [0, 1], [9], [2]],
        )
    )
    assert sorted(request.errors) == [1, 2]
    np.testing.assert_array_equal(request.lengths, [2, 0, 0, 1])
    np.testing.assert_array_equal(request.indices, [0, 2, 2])


def test_a_broken_primitive_that_no_candidate_uses_harms_none():
    assert read_predict(document(primitives=[["CI", 1], ["CI", 2], ["??"]])).errors == {}


def measured(**changes):
    base = {"format": 1, "worker": "w", "records": [{"id": "1", "record": json.loads(RECORD)}]}
    return {**base, **changes}


def record_with(costs, error_no=0):
    record = json.loads(RECORD)
    record["r"][:2] = [costs, error_no]
    return {"id": "1", "record": record}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (measured(worker=None), "worker: who measured is needed"),
        (measured(worker="a\nb"), "worker: 1 to 128 letters"),
        (measured(records=[]), "records: a list of one or more"),
        (measured(records=[5]), r"records\[0\]: the entry: a JSON object"),
        (measured(records=[{"record": json.loads(RECORD)}]), r"records\[0\]: an id is needed"),
        (measured(records=[{"id": 5, "record": json.loads(RECORD)}]), r"records\[0\]: id: 1 to 128"),
        (measured(records=[{"id": "1"}]), r"records\[0\]: a record is a JSON object"),
        (
            measured(records=[record_with([0.1]), record_with([0.2])]),
            r"records\[1\]: id '1' is that of records\[0\]",
        ),
        (measured(records=[record_with([float("nan")])]), r"records\[0\]: r\[0\]\[0\].*not nan"),
        (measured(records=[record_with([-0.1])]), r"records\[0\]: r\[0\]: the costs of a successful run"),
        (measured(records=[record_with([0.0])]), r"records\[0\]: r\[0\]: the costs of a successful run"),
        (measured(records=[record_with([1e-12])]), r"records\[0\]: r\[0\]: the costs of a successful run"),
        (measured(records=[record_with([])]), r"records\[0\]: r\[0\]: the costs of a successful run"),
        (measured(records=[record_with([1e10])]), r"records\[0\]: r\[0\]: the costs of a successful run"),
    ],
)
def test_a_measurement_request_that_breaks_the_format_is_refused_by_its_place(body, message):
    with pytest.raises(InvalidRequest, match=message):
        read_measurements(body)


def test_a_failed_run_is_a_measurement():
    assert len(read_measurements(measured(records=[record_with([1e10], error_no=4)])).measurements) == 1


def test_with_report_only_the_invalid_records_are_refused():
    bad = record_with([-1.0])
    good = {"id": "2", "record": json.loads(RECORD)}
    request = read_measurements(measured(on_invalid="report", records=[bad, good, 7]))
    assert [m.id for m in request.measurements] == ["2"]
    assert [position for position, _ in request.errors] == [0, 2]


def test_an_id_made_of_contents_tells_runs_and_platforms_apart():
    parser = RecordParser()
    record, again = parser.parse(RECORD), parser.parse(RECORD.replace("1603402396", "1603402397"))
    ids = {measurement_id(record, "a"), measurement_id(record, "b"), measurement_id(again, "a")}
    assert len(ids) == 3
    assert measurement_id(parser.parse(RECORD), "a") in ids


def answer(**changes):
    base = {
        "format": 1,
        "model": "m",
        "version": "v",
        "scores": [0.5, None],
        "errors": [{"candidate": 1, "error": "x"}],
    }
    return json.dumps({**base, **changes}).encode()


def test_an_answer_is_decoded():
    decoded = decode_predict_answer(answer(), 2)
    assert (decoded.model, decoded.version, decoded.scores) == ("m", "v", [0.5, None])
    assert decoded.errors == {1: "x"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"[" * 100_000,
        answer(format=2),
        answer(scores=[0.5]),
        answer(scores=None),
        answer(scores=[0.5, "x"]),
        answer(scores=[0.5, True]),
        answer(scores=[0.5, float("nan")]),
        answer(scores=[0.5, float("inf")]),
        answer(version=None),
        answer(version="a b"),  # the client would send it back with requests and measurements
        answer(version="v" * 129),
        answer(model="\ud800"),
        answer(scores=[0.5, 10**309]),  # does not fit a float
        answer(scores=[0.5, -(10**309)]),
        answer(scores=[0.5, 1e39]),  # infinite in 32 bits, in which tuners keep scores
        answer(scores=[0.5, -1e39]),
        answer(scores=[0.5, 1]).replace(b"1]", b"1" * 5000 + b"]"),  # more digits than Python parses
    ],
)
def test_an_answer_that_does_not_answer_is_refused(body):
    with pytest.raises(BadAnswer):
        decode_predict_answer(body, 2)


def kept(**changes):
    good = {"format": 1, "accepted": 2, "duplicates": 1, "rejected": [{"record": 3, "error": "x"}]}
    return json.dumps({**good, **changes}).encode()


def test_a_measurement_answer_that_accounts_for_all_records_is_decoded():
    decoded = decode_measurement_answer(kept(), 4)
    assert (decoded.accepted, decoded.duplicates, decoded.rejected) == (2, 1, {3: "x"})
    later = decode_measurement_answer(kept(round=7, rejected=[{"record": 0, "error": "x", "code": "y"}]), 4)
    assert later.rejected == {0: "x"}  # a later server may add fields


@pytest.mark.parametrize(
    "body",
    [
        b'{"format": 1}',
        kept(format=2),
        kept(accepted=3),
        kept(accepted=1),
        kept(accepted=True),
        kept(accepted=-1, duplicates=4),
        kept(accepted=2.0),
        kept(duplicates=None),
        kept(duplicates=10**310),
        kept(rejected=None),
        kept(rejected={}),
        kept(rejected=[]),
        kept(rejected=["x"]),
        kept(rejected=[{"error": "x"}]),
        kept(rejected=[{"record": "3", "error": "x"}]),
        kept(rejected=[{"record": True, "error": "x"}]),
        kept(rejected=[{"record": 4, "error": "x"}]),
        kept(rejected=[{"record": -1, "error": "x"}]),
        kept(rejected=[{"record": 10**310, "error": "x"}]),
        kept(accepted=1, rejected=[{"record": 3, "error": "x"}] * 2),
    ],
)
def test_a_measurement_answer_that_does_not_account_for_each_record_once_is_refused(body):
    """Otherwise the client would take unaccounted records for stored ones and delete them."""
    with pytest.raises(BadAnswer):
        decode_measurement_answer(body, 4)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (UnknownFormat, {"format": 2}),
        (UnknownFormat, {"format": 2, "a_field_of_format_2": 1}),
        (UnknownFormat, {"format": 10**310}),
        (UnknownField, {"round": 7}),
        (Unsupported, {"on_invalid": "repair"}),
        (InvalidRequest, {"format": None}),
        (InvalidRequest, {"format": "1"}),
        (InvalidRequest, {"format": True}),
        (InvalidRequest, {"on_invalid": 7}),
    ],
)
@pytest.mark.parametrize(("read", "make"), [(read_predict, document), (read_measurements, measured)])
def test_what_another_server_may_take_is_told_apart_from_what_none_takes(kind, changes, read, make):
    with pytest.raises(InvalidRequest) as raised:
        read({**make(), **changes})
    assert type(raised.value) is kind


def test_an_unknown_field_beside_a_record_is_the_requests_and_no_verdict_on_the_record():
    """A later client sends the field with all records; rejecting them one by one would lose them all."""
    body = measured(on_invalid="report")
    body["records"][0]["round"] = 7
    with pytest.raises(
        UnknownField, match=r"records\[0\]: the entry: unknown field 'round'; known: id, record"
    ):
        read_measurements(body)


def test_an_unknown_field_of_the_task_is_told():
    with pytest.raises(UnknownField, match="task: unknown field 'layout'"):
        read_predict(document(task={"workload_key": "[]", "target": "llvm", "layout": 1}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)
PLACES = st.sampled_from(
    ["format", "task", "version", "on_invalid", "validity", "primitives", "candidates", "records", "worker"]
)


@given(PLACES, JSON)
def test_any_value_anywhere_is_read_or_clearly_refused(place, value):
    for read, body in ((read_predict, document()), (read_measurements, measured())):
        with contextlib.suppress(InvalidRequest):
            read({**body, place: value})


def test_a_candidate_that_is_too_large_is_an_error_of_its_own():
    steps, sizes, far = (
        [["CI", 4]] * 513,
        [["FFSP", 0, 0, [0] * 16, 1, 1]] * 65,
        [["FFSP", 0, 0, [0] * 17, 1, 1]],
    )
    candidates = [steps[1:], steps, sizes[1:], sizes, [["CI", 1]], far]
    known = [["CI", 4], ["FFSP", 0, 0, [0] * 16, 1, 1], ["CI", 1], far[0]]
    indexed = [[known.index(step) for step in candidate] for candidate in candidates]
    for fields in ({"candidates": candidates}, {"candidates": indexed, "primitives": known}):
        document = {"format": 1, "task": {"workload_key": "[]", "target": "llvm"}, **fields}
        with pytest.raises(InvalidRequest, match=r"candidates\[1\]: 513 primitives are more than the 512"):
            read_predict(document)
        request = read_predict({**document, "on_invalid": "report"})
        assert sorted(request.errors) == [1, 3, 5]
        assert request.errors[3].startswith(
            "candidates[3]: its splits have 1040 sizes, which are more than the 1024"
        )
        assert request.errors[5].startswith("candidates[5], primitive 0")
        assert request.errors[5].endswith(
            "argument 'source steps' of FFSP: expected at most 16 entries, got 17"
        )
        assert request.lengths.tolist() == [512, 0, 64, 0, 1, 0]
        assert [request.primitives[n] for n in request.indices[[0, 512, 576]]] == [
            Primitive("CI", (4,)), Primitive("FFSP", (0, 0, (0,) * 16, 1, 1)), Primitive("CI", (1,))
        ]  # fmt: skip
