"""Dialects: how they are found, and what requests, ids and files of one that is not the default say."""

import ast
import json
from pathlib import Path

import pytest

import tlp_client
from tlp_client.dialects.ansor import Ansor
from tlp_client.dialects.dialect import Dialect
from tlp_client.dialects.registry import DEFAULT, find, names, register, stated_name
from tlp_client.errors import InvalidPrimitive, InvalidRecord, InvalidRequest, Unsupported
from tlp_client.primitives import Primitive, check_candidate, read_primitive
from tlp_client.records import MAX_COSTS, Record, RecordParser, read_record, split_primitives
from tlp_client.spool import Letter, Spool
from tlp_client.tasks import Task, workload_of
from tlp_client.wire.measurements import encode_measurements, measurement_id, read_measurements
from tlp_client.wire.predict import encode_predict, read_predict

ROOT = Path(__file__).resolve().parents[2]
TASK = Task('["w"]', "llvm", dialect="plain")


class Plain(Dialect):
    """Steps that are numbers or nested lists, with nothing of its own but what every dialect has to say."""

    name = "plain"
    versions = ("1",)
    kinds = ("add", "nest")
    max_steps = 3

    def read_arguments(self, kind, args):
        if len(args) != 1:
            raise InvalidPrimitive(f"{kind} takes 1 argument, not {len(args)}")
        return tuple(map(frozen, args))

    def read_record(self, document):
        if not isinstance(document, dict) or document.keys() != {"of", "steps", "s"}:
            raise InvalidRecord("a plain record has of, steps and s")
        task = Task(*document["of"], dialect=self.name)
        return Record(task, self.read_primitives(document["steps"]), tuple(document["s"]), 0, 0.0, 0.0, "1")

    def record_json(self, record):
        steps = [primitive.to_json() for primitive in record.primitives]
        return {"of": self.task_json(record.task), "steps": steps, "s": list(record.costs)}

    def task_json(self, task):
        return [task.workload_key, task.target]


def frozen(argument):
    return tuple(map(frozen, argument)) if isinstance(argument, list) else argument


@pytest.fixture(scope="module", autouse=True)
def _plain():
    register(Plain())


def line_of(*steps, seconds=(0.1,)):
    return json.dumps({"of": ['["w"]', "llvm"], "steps": list(steps), "s": list(seconds)})


def test_the_default_dialect_is_found_without_a_name_and_is_not_stated():
    assert find() is find(None) is find(DEFAULT)
    assert isinstance(find(), Ansor)
    assert stated_name(DEFAULT) is None
    assert stated_name("plain") == "plain"
    assert {DEFAULT, "plain"} <= set(names())


def test_a_dialect_that_is_not_known_is_refused_with_those_that_are():
    with pytest.raises(Unsupported, match=r"dialect: expected one of ansor, .*plain.*, got 'unheard'"):
        find("unheard")


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="'plain' is registered already"):
        register(Plain())
    register(find("plain"))  # the same object may come again, as when a module is imported in two ways

    class Nameless(Plain):
        name = "two words"

    with pytest.raises(ValueError, match="expected a name, got 'two words'"):
        register(Nameless())


def test_each_dialect_has_its_own_primitives():
    step = ["nest", [["b0"], "None", 1.5, None, ["x", ["y"]]]]
    primitive = read_primitive(step, "plain")
    assert primitive == Primitive("nest", ((("b0",), "None", 1.5, None, ("x", ("y",))),))
    assert hash(primitive) == hash(read_primitive(json.loads(json.dumps(step)), "plain"))
    assert primitive.to_json() == step
    with pytest.raises(InvalidPrimitive, match="unknown primitive kind 'nest'"):
        read_primitive(step)
    with pytest.raises(InvalidPrimitive, match="unknown primitive kind 'CI'; known: add nest"):
        read_primitive(["CI", 4], "plain")


def test_each_dialect_has_its_own_bounds():
    steps = [read_primitive(["add", 1], "plain")] * 4
    check_candidate(steps[1:], "plain")
    with pytest.raises(InvalidPrimitive, match="4 primitives are more than the 3 that"):
        check_candidate(steps, "plain")
    check_candidate([read_primitive(["CI", 4])] * 4)


def test_records_and_candidates_are_of_their_dialect():
    line = line_of(["add", 1], ["nest", ["é"]], ["add", 1])
    record = RecordParser(dialect="plain").parse(line)
    assert record.task == TASK
    assert record == read_record(json.loads(line), "plain")
    assert json.loads(record.to_line()) == record.to_json() == json.loads(line)
    texts, candidates = split_primitives([line, line_of(), line_of(["add", 1])], "plain")
    assert [json.loads(text) for text in texts] == [["add", 1], ["nest", ["é"]]]
    assert candidates == [[0, 1, 0], [], [0]]
    with pytest.raises(InvalidRecord, match="a candidate is not a record line"):
        split_primitives(["{"], "plain")


def test_a_parser_that_is_not_fast_counts_what_it_makes():
    parser = RecordParser(dialect="plain")
    parser.parse(line_of(["add", 1]))
    first = parser.made_bytes
    parser.parse(line_of(["add", 1], ["nest", ["x" * 10_000]]))
    assert parser.made_bytes - first > 10_000 > first > 0


@pytest.mark.parametrize("line", ["{", "[" * 60_000, "[]", line_of(["CI", 4]), line_of(*[["add", 1]] * 4)])
def test_a_line_that_is_no_record_is_refused(line):
    with pytest.raises((InvalidRecord, InvalidPrimitive)):
        RecordParser(dialect="plain").parse(line)


def test_the_line_of_a_record_is_bounded_in_every_dialect():
    document = json.loads(line_of(["nest", ["x" * 70_000]]))
    with pytest.raises(InvalidRecord, match="bytes, which are more than the 65536"):
        read_record(document, "plain")
    assert MAX_COSTS == 1000


def test_equal_keys_of_two_dialects_are_two_workloads():
    assert (
        workload_of('["w", 1]')
        == workload_of('["w", 1]', DEFAULT)
        == Task('["w", 1]', "llvm").workload
        == '["w",1]'
    )
    assert workload_of('["w", 1]', "plain") == 'plain:["w",1]'
    assert Task('["w"]', "llvm") != TASK


def test_equal_lines_of_two_dialects_have_two_ids():
    """The toy line is the one that Ansor would write, so only the dialect tells them apart."""
    ansor = read_record({"i": [['["w"]', "llvm"], [[], []]], "r": [[0.1], 0, 0.0, 0], "v": "v0.6"})

    class Twin(Plain):
        name = "twin"

        def line(self, record):
            return ansor.to_line()

    register(Twin())
    twin = Record(Task('["w"]', "llvm", dialect="twin"), (), (0.1,), 0, 0.0, 0.0)
    assert twin.to_line() == ansor.to_line()
    assert measurement_id(twin, "epyc") != measurement_id(ansor, "epyc")


def test_a_predict_request_states_a_dialect_that_is_not_the_default():
    body = json.loads(encode_predict(TASK, ['["add", 1]'], [[0]]))
    assert body["task"] == {"workload_key": '["w"]', "target": "llvm", "platform": None, "dialect": "plain"}
    request = read_predict(body)
    assert (request.dialect, request.primitives) == ("plain", [Primitive("add", (1,))])
    ansor = json.loads(encode_predict(Task('["w"]', "llvm"), ['["CI", 1]'], [[0]]))
    assert "dialect" not in ansor["task"]
    assert read_predict(ansor).dialect == DEFAULT


def test_a_predict_request_is_read_with_the_bounds_of_its_dialect():
    body = json.loads(encode_predict(TASK, ['["add", 1]', '["CI", 1]'], [[0] * 3, [0] * 4, [1], [0]]))
    request = read_predict(body)
    assert request.errors == {
        1: "candidates[1]: 4 primitives are more than the 3 that a candidate may have",
        2: "candidates[2], primitive 0 (primitives[1]): unknown primitive kind 'CI'; known: add nest",
    }
    assert request.lengths.tolist() == [3, 0, 0, 1]
    nested = {**body, "primitives": None, "candidates": [[["add", 1]], [["CI", 1]]]}
    assert list(read_predict(nested).errors) == [1]


def test_a_measurement_request_states_a_dialect_that_is_not_the_default():
    body = json.loads(encode_measurements([("a", line_of(["add", 1]))], worker="w", dialect="plain"))
    assert body["dialect"] == "plain"
    request = read_measurements(body)
    assert request.dialect == "plain"
    assert request.measurements[0].record.primitives == (Primitive("add", (1,)),)
    assert b"dialect" not in encode_measurements([("a", "{}")], worker="w")


@pytest.mark.parametrize(
    ("dialect", "error"),
    [
        ("unheard", Unsupported),
        ("two words", InvalidRequest),
        ("", InvalidRequest),
        (7, InvalidRequest),
        (["ansor"], InvalidRequest),
        (True, InvalidRequest),
    ],
)
def test_a_dialect_that_is_not_known_refuses_the_request_as_a_whole(dialect, error):
    """So the client keeps its records for a server that knows the dialect."""
    predict = {
        "format": 1,
        "task": {"workload_key": "[]", "target": "llvm", "dialect": dialect},
        "candidates": [[]],
    }
    measured = {"format": 1, "worker": "w", "dialect": dialect, "records": [{}], "on_invalid": "report"}
    for read, body, place in (
        (read_predict, predict, "task.dialect"),
        (read_measurements, measured, "dialect"),
    ):
        with pytest.raises(InvalidRequest, match=f"^{place}: expected one of ansor, .*plain") as refused:
            read(body)
        assert type(refused.value) is error


def test_letters_of_two_dialects_wait_in_two_files(tmp_path):
    """An outbox states one dialect for all that it sends, so it must not adopt what another tuner's left."""
    left = Spool(tmp_path, "http://service", "epyc", "plain")
    left.add([Letter("a", line_of(["add", 1]), None, "w")])
    left.close()
    assert Spool(tmp_path, "http://service", "epyc").adopt(2**20) == []
    heir = Spool(tmp_path, "http://service", "epyc", "plain")
    assert [letter.id for letter in heir.adopt(2**20)] == ["a"]
    heir.quarantine.add([{"line": "x"}])
    assert json.loads(heir.quarantine.path.read_text())["dialect"] == "plain"
    heir.close()


def comparisons(tree):
    """Yield the names and strings that code compares something with, or looks up by a pattern."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("startswith", "endswith"):
            sides = node.args
        else:
            continue
        for part in (part for side in sides for part in ast.walk(side)):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value
            elif isinstance(part, ast.Name | ast.Attribute):
                yield ast.unparse(part)


def test_no_code_outside_of_a_dialects_folder_compares_its_name():
    dialects = Path(tlp_client.__file__).parent / "dialects"
    folders = {path.name: path for path in dialects.iterdir() if (path / "__init__.py").exists()}
    assert folders.keys() == {"ansor"}
    forbidden = {*folders, "Ansor.name", "DEFAULT", "registry.DEFAULT"}
    found = []
    files = [*(ROOT / "client").rglob("*.py"), *(ROOT / "service").rglob("*.py")]
    for path in files:
        own = {name for name, folder in folders.items() if folder in path.parents}
        compared = set(comparisons(ast.parse(path.read_text()))) & (forbidden - own)
        found += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(compared)]
    assert len(files) > 100
    # The one place that decides whether a dialect is stated.
    assert found == ["client/tlp_client/dialects/registry.py: DEFAULT"]
