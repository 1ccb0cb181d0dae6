"""All parsers, each with valid inputs and its documented errors."""

import contextlib
import dataclasses
import gzip
import json
from pathlib import Path

import msgspec
import numpy as np
from mutations import damaged_bytes, damaged_json, damaged_tree

from tlp_client.dialects.ansor.tasks import read_task
from tlp_client.errors import BadAnswer, InvalidInput
from tlp_client.locked_file import LockedFile
from tlp_client.logs import LogReader
from tlp_client.primitives import read_primitive
from tlp_client.records import RecordParser, split_primitives
from tlp_client.spool import _read_letters
from tlp_client.tasks import platform_kind
from tlp_client.wire.measurements import check_measured, decode_measurement_answer, read_measurements
from tlp_client.wire.predict import decode_predict_answer, read_predict
from tlp_service.api.body import _Inflater, decode_json
from tlp_service.api.decoded import DecodeMemory
from tlp_service.api.measured_body import prepare_in_steps
from tlp_service.api.request_memory import BodyMemory
from tlp_service.api.tuning_log import request_in_steps, tasks_in_steps
from tlp_service.errors import BadVersion, RequestFault
from tlp_service.measurements.stream import Entry
from tlp_service.quality.metrics import QualityCollector, decode_quality
from tlp_service.records.platform_table import OnePlatform
from tlp_service.records.reader import stored_records
from tlp_service.records.schema import Rows, Texts
from tlp_service.records.store import RecordStore
from tlp_service.scheduling.steps import finished
from tlp_service.scoring.scorer import Scorer
from tlp_service.settings import shipped_model
from tlp_service.versions.journal import Activation, Journal, Mark
from tlp_service.versions.manifest import parse_manifest, read_manifest

DATA = Path(__file__).resolve().parent.parent / "data"
BASE = read_manifest(shipped_model("loopnest"))
#: Bytes that a damaged gzip stream may become.
MAX_INFLATED = 1 << 20
#: Records of the valid file beside a damaged one.
SOUND_ROWS = 40


@dataclasses.dataclass(frozen=True)
class Parser:
    """A parser under test: valid inputs, how to damage them, how to read them, and the expected errors."""

    name: str
    inputs: list[bytes]
    damage: object
    read: object
    errors: tuple[type[Exception], ...] = ()
    #: Share of the inputs in percent; some parsers are slow.
    weight: int = 10


def parsers(folder):
    """Return all parsers; `folder` is for those that read files."""
    lines = [
        line for name in ("measured.json", "cuda.json") for line in (DATA / name).read_text().splitlines()
    ]
    records = [json.loads(line) for line in lines[::7]]
    encoded = [line.encode() for line in lines[::7]]
    log = "\n".join(lines[:20]).encode()
    return [
        Parser("predict body", _predict_bodies(records), damaged_json, _read_predict, (RequestFault, InvalidInput)),
        Parser("measurement body", _measurement_bodies(records), damaged_json, _read_measurements,
            (RequestFault, InvalidInput)),
        Parser("record", encoded, damaged_json, _read_record, (InvalidInput,), 15),
        Parser("primitive", [json.dumps(p).encode() for r in records for p in r["i"][1][1]], damaged_json,
            _read_primitive, (InvalidInput,), 15),
        Parser("task", [json.dumps(r["i"][0]).encode() for r in records], damaged_json, _read_task, (InvalidInput,), 5),
        Parser("log as a body", [log], damaged_bytes, _read_log, (RequestFault,), 4),
        Parser("log as a file", [log, gzip.compress(log)], damaged_bytes, _FileReader(folder / "log"), (), 4),
        Parser("gzip body", [gzip.compress(b"{}" * 500), gzip.compress(log)], damaged_bytes, _inflate, (RequestFault,)),
        Parser("manifest", _manifests(), damaged_json, lambda whole: parse_manifest(whole, "here"), (BadVersion,)),
        Parser("journal", [_journal()], damaged_json, _read_journal, (BadVersion,)),
        Parser("quality", [_quality()], damaged_json, _read_quality),
        Parser("outbox file", [_letters()], damaged_bytes, _OutboxReader(folder / "letters")),
        Parser("stream entry", _entries(lines), damaged_json, _read_entry, (InvalidInput, TypeError)),
        Parser("predict answer", [_answer()], damaged_json, lambda whole: decode_predict_answer(whole, 3),
            (BadAnswer,)),
        Parser("measurement answer",
            [b'{"format": 1, "accepted": 3, "duplicates": 1, "rejected": [{"record": 1, "error": "x"}]}'],
            damaged_json, lambda whole: decode_measurement_answer(whole, 5), (BadAnswer,)),
        Parser("stored row", encoded, damaged_json, _store_row, (InvalidInput,), 5),
        Parser("store file", [_store_file(folder / "other", lines[100:160])], damaged_bytes,
            _StoreReader(folder / "store", _store_file(folder / "sound", lines[:SOUND_ROWS])), (), 2),
        Parser("scores beside it", _predict_bodies(records[:30]),
            lambda chance, whole: damaged_candidates(chance, whole), _Mixed(records), (), 2),
    ]  # fmt: skip


def _predict_bodies(records):
    bodies = []
    for record in records:
        (workload_key, target), steps = record["i"][0][:2], record["i"][1][1]
        task = {"workload_key": workload_key, "target": target, "platform": None}
        head = {"format": 1, "task": task, "version": None, "on_invalid": "report"}
        bodies.append({**head, "candidates": [steps, steps[:3], []]})
        indices = list(range(len(steps)))
        bodies.append({**head, "validity": True, "primitives": steps, "candidates": [indices, indices[:2]]})
    return [json.dumps(body).encode() for body in bodies]


def _measurement_bodies(records):
    return [
        json.dumps(
            {"format": 1, "worker": "w", "platform": "epyc", "version": "v", "on_invalid": "report",
             "records": [{"id": f"r{n}", "record": r} for n, r in enumerate(records[at : at + 2])]}
        ).encode()
        for at in range(0, len(records), 3)
    ]  # fmt: skip


def _read_predict(body):
    request = read_predict(decode_json(body))
    platform_kind(request.target)


def _read_measurements(body):
    _prepare("application/json", body, {})
    for measurement in read_measurements(decode_json(body)).measurements:
        measurement.record.to_line()


def _text_of(whole):
    try:
        return whole.decode()
    except UnicodeDecodeError:
        return whole.decode("latin-1")


def _read_record(whole):
    text = _text_of(whole)
    record = RecordParser().parse(text)
    assert RecordParser().parse(record.to_line()) == record
    split_primitives([record.to_line()])


def _read_primitive(whole):
    try:
        document = json.loads(whole)
    except (ValueError, RecursionError):
        return
    read_primitive(document)


def _read_task(whole):
    try:
        document = json.loads(whole)
    except (ValueError, RecursionError):
        return
    platform_kind(read_task(document).target)


def _read_log(body):
    with BodyMemory(64 << 20, DecodeMemory(64 << 20)).reserve() as memory:
        lines, tasks = finished(tasks_in_steps(body, 1000, memory))
    for task in tasks:
        finished(request_in_steps(lines, task, None, None))
    _prepare("application/x-ndjson", body, dict.fromkeys(("worker", "platform", "version")))


def _prepare(kind, body, query):
    with BodyMemory(64 << 20, DecodeMemory(64 << 20)).reserve() as memory:
        for entry in finished(prepare_in_steps(memory, 1000, BASE, kind, body, query)).entries:
            RecordParser().parse(entry.record)


class _FileReader:
    def __init__(self, path):
        self._path = path

    def __call__(self, whole):
        self._path.write_bytes(whole)
        list(LogReader().read_file(self._path))


def _inflate(whole):
    inflater = _Inflater()
    assert len(inflater.feed(whole, MAX_INFLATED)) <= MAX_INFLATED + len(whole)


def _manifests():
    folders = [shipped_model(), shipped_model("published")]
    return [(folder / "manifest.json").read_bytes() for folder in folders]


def _journal():
    journal = Journal().activated(Activation("base-1", "2026-01-01T00:00:00+00:00", "me"))
    journal = journal.activated(Activation("base-2", "2026-01-01T00:00:00+00:00", "me"))
    return journal.marked("base-0", Mark("failed", "a reason", "2026-01-01T00:00:00+00:00")).encode()


def _read_journal(whole):
    journal = Journal.decode(whole)
    journal.recent(5)
    list(journal.earlier())
    assert Journal.decode(journal.encode()) == journal


def _quality():
    figures = {"measured": 3, "serving": True, "failed_share": 0.1, "pair_accuracy": 0.5, "drifting": False}
    return json.dumps({"time": 1.0, "serving": "v", "platforms": {"p": {"v": figures}}}).encode()


def _read_quality(whole):
    msgspec.json.encode(decode_quality(whole))
    collector = QualityCollector()
    collector.tell(whole)
    list(collector.collect())


def _letters():
    letters = [{"id": f"i{n}", "line": "{}", "version": "v", "worker": "w"} for n in range(9)]
    return b"".join(json.dumps(one).encode() + b"\n" for one in [*letters, {"gone": ["i1", "i2"]}])


class _OutboxReader:
    def __init__(self, path):
        self._path = path

    def __call__(self, whole):
        self._path.write_bytes(whole)
        letters = {}
        file = LockedFile.take(self._path)
        _read_letters(file, letters)
        file.close()
        assert all(isinstance(letter.line, str) for letter in letters.values())


def _entries(lines):
    return [
        json.dumps(Entry(f"i{n}", line, "w", "epyc", "v")._asdict()).encode()
        for n, line in enumerate(lines[::30])
    ]


def _read_entry(whole):
    try:
        fields = json.loads(whole)
    except (ValueError, RecursionError):
        return
    if not isinstance(fields, dict) or not all(isinstance(v, str) for v in fields.values()):
        return  # values in Redis are always text
    RecordParser().parse(Entry(**fields).record)


def _answer():
    return (
        b'{"format": 1, "model": "m", "version": "v", "scores": [0.5, 0.25, null], '
        b'"errors": [{"candidate": 2, "error": "x"}]}'
    )


def _store_row(whole):
    record = RecordParser().parse(_text_of(whole))
    check_measured(record)
    rows = Rows("epyc", Texts())
    rows.add(record, whole, "worker:w", 0)
    with contextlib.suppress(ValueError, TypeError, OverflowError):  # the recorder keeps it as a dead letter
        rows.table()


def _store_file(folder, lines):
    from tlp_service.records.importer import import_logs

    log = folder.with_suffix(".json")
    log.write_text("\n".join(lines) + "\n")
    store = RecordStore.create(folder)
    import_logs([log], store, OnePlatform("epyc"), 1)
    (path,) = folder.glob("platform=*/*.parquet")
    return path.read_bytes()


class _StoreReader:
    """Reads a damaged file beside a valid one, whose records must be read in any case."""

    def __init__(self, folder, sound):
        self._store = RecordStore.create(folder)
        self._folder, self._sound = folder / "platform=epyc", sound
        self._folder.mkdir()

    def __call__(self, whole):
        for path in self._folder.iterdir():
            path.unlink()
        (self._folder / "records.parquet").write_bytes(self._sound)
        (self._folder / "part-0.parquet").write_bytes(whole)
        records = [record.to_line() for _, record in stored_records(self._store)]
        assert len(records) >= SOUND_ROWS


class _Mixed:
    """Scores valid candidates beside damaged ones, which must not change their scores."""

    def __init__(self, records):
        self._scorer = Scorer(shipped_model())
        self._alone = {}

    def __call__(self, case):
        clean, body = case
        if clean not in self._alone:
            self._alone[clean] = self._scorer.score(read_predict(json.loads(clean))).scores
        alone = self._alone[clean]
        try:
            request = read_predict(json.loads(body))
            scores = self._scorer.score(request).scores
        except (InvalidInput, RequestFault) as error:
            raise AssertionError(f"reported as a whole: {error}") from error
        np.testing.assert_allclose(scores[: len(alone)], alone, rtol=1e-5)


def damaged_candidates(chance, whole):
    """Return a request, and the same with damaged candidates after its own."""
    document = json.loads(whole)
    document.pop("validity", None)
    steps = document.pop("primitives", None)
    if steps:
        document["candidates"] = [[steps[i] for i in c] for c in document["candidates"]]
    clean = json.dumps(document)
    more = [damaged_tree(chance, document["candidates"][0]) for _ in range(4)]
    more = [c if isinstance(c, list) else [c] for c in more]
    return clean, json.dumps({**document, "candidates": document["candidates"] + more})
