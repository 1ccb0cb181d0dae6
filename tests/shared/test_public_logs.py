"""Public tuning logs that are not part of the project; skipped where they are not beside the checkout."""

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tlp_client.logs import LogReader
from tlp_client.records import Record, RecordParser, read_record
from tlp_client.tasks import platform_kind
from tlp_client.wire.predict import request_of
from tlp_service.families.published.encoder import PublishedEncoder
from tlp_service.families.published.features import PUBLISHED
from tlp_service.ranking.plausible import is_plausible
from tlp_service.ranking.ranking import rank_tasks
from tlp_service.scoring.scorer import Scorer
from tlp_service.settings import shipped_model
from tlp_service.training.dataset import ImportReport, build_sets, read_records

LOGS = Path(__file__).resolve().parents[3] / "shared" / "data" / "ansor-logs"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LOGS.is_dir(), reason="the public logs are not beside this checkout"),
]

ENCODERS = {kind: PublishedEncoder(features) for kind, features in PUBLISHED.items()}


@pytest.fixture(scope="module")
def sample_lines():
    with gzip.open(LOGS / "_sample" / "mixed-20-per-folder.json.gz", "rt") as file:
        return file.read().splitlines()


def test_records_of_every_source_parse_alike_both_ways(sample_lines):
    parser = RecordParser()
    for line in sample_lines:
        document = json.loads(line)
        if "r" in document and "i" in document:
            assert parser.parse(line) == read_record(document)


def test_each_record_has_rows_of_its_platform_kind(sample_lines):
    unknown = Counter()
    for line in sample_lines:
        document = json.loads(line)
        if "r" not in document or "i" not in document:
            continue
        record = read_record(document)
        kind = platform_kind(record.task.target)
        _, errors = PUBLISHED[kind].rows(list(record.primitives))
        unknown.update(str(error) for error in errors.values())
    # The published vocabularies lack a few unroll values that these logs hold; they are named, never guessed.
    assert all("auto_unroll_max_step$" in message for message in unknown)


def test_base_scores_records_of_every_source(sample_lines):
    scorer, scored = Scorer(shipped_model()), 0
    for line in sample_lines:
        document = json.loads(line)
        if "r" not in document or "i" not in document:
            continue
        record = read_record(document)
        assert np.isfinite(scorer.score(request_of(record.task, [record.primitives])).scores).all()
        scored += 1
    assert scored > 300


@pytest.mark.parametrize(
    ("name", "records", "refused"),
    [
        ("apache-tvm-ci/matmul.v3.json", 1, 0),
        ("apache-tvm-ci/resnet-18-NHWC-B1-cuda.v5.json", 24, 0),
        ("lac-dcc-bennu/not-ansor/autotvm-record-with-ansor-steps-matmul.json", 0, None),
        ("zhangsicheng-workspace/tmp_buildtar/temp.json.gz", 0, None),
    ],
)
def test_special_files(name, records, refused):
    reader = LogReader()
    assert len(list(reader.read_file(LOGS / name))) == records
    if refused is None:
        assert reader.refused
        assert all("AutoTVM" in r.reason or "without its result" in r.reason for r in reader.refused)
    else:
        assert len(reader.refused) == refused


def test_a_file_of_7296_failures_gives_no_task():
    report = ImportReport()
    (path,) = LOGS.glob("lac-dcc-bennu/x86/**/cpu_matmul_20k.json.gz")
    assert build_sets(read_records([path], lambda path: lambda record: "x86", report), ENCODERS, report) == {}
    assert report.counts["left out: failed or implausible run"] == 7296


def test_k80_and_v100_records_carry_the_same_target():
    targets = set()
    for folder in ("k80", "v100-ops"):
        path = next(p for p in sorted((LOGS / "microsoft-nnfusion" / folder).rglob("*.log*")))
        record = next(r for r in LogReader().read_file(path) if isinstance(r, Record))
        targets.add((record.task.target, record.task.hardware))
    assert len(targets) == 1


def test_a_perfect_score_ranks_perfectly_on_real_costs():
    path = next(p for p in sorted((LOGS / "mmperf").rglob("*.json*")))
    report = ImportReport()
    (gpu,) = build_sets(
        read_records([path], lambda path: lambda record: "a100", report), ENCODERS, report
    ).values()
    ranking = rank_tasks((-task.costs, task.costs) for task in gpu.tasks)
    assert (ranking.top1_mean, ranking.top5_pooled) == (1, 1)
    assert ranking.pair_accuracy == 1


def test_every_measured_cost_of_this_project_and_of_the_sample_can_be_a_run_time(sample_lines):
    """So what is trained on them is the same, to the last bit, as without the rule."""
    with gzip.open(LOGS.parent / "measured" / "records.json.gz", "rt") as file:
        lines = file.read().splitlines()
    costs = {}
    for record in map(RecordParser().parse, lines):
        if record.is_valid:
            costs.setdefault(record.task.workload, []).append(np.median(record.costs))
    for line in sample_lines:
        document = json.loads(line)
        if "r" in document and "i" in document and (record := RecordParser().parse(line)).is_valid:
            costs.setdefault((record.task.workload, record.task.target), []).append(np.median(record.costs))
    assert sum(map(len, costs.values())) > 9000
    for task, of_task in costs.items():
        workload = task if isinstance(task, str) else task[0]
        assert is_plausible(workload, np.array(of_task)).all()
