"""`loopnest`: features of candidates and tasks, and the network in torch and in the engine."""

import contextlib
import json
import math
import sys
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_loop_nest import any_primitive

from tlp_client.errors import InvalidRequest
from tlp_client.primitives import MAX_STEPS, Primitive, read_primitive
from tlp_client.wire.predict import read_predict
from tlp_service.errors import BadRecords, BadVersion, InvalidBody
from tlp_service.families.lookup import preset_named
from tlp_service.families.loopnest import features, skeleton
from tlp_service.families.loopnest.network import LoopNestNetwork, Pieces
from tlp_service.families.loopnest.task import (
    _A_NUMBER,
    _KEY_NUMBERS,
    PLATFORMS,
    TASK_WIDTH,
    _describe,
    task_row,
)
from tlp_service.scoring.scorer import Scorer
from tlp_service.training.dataset import TrainingSet, TrainingTask
from tlp_service.training.export import check_equal, export_onnx, read_weights
from tlp_service.training.form import Sample
from tlp_service.versions.bounded_file import sha256_of
from tlp_service.versions.manifest import (
    SCHEMA,
    Manifest,
    Network,
    ScoreMap,
    version_name,
    write_version,
)

SMALL = {"width": 16, "blocks": 2, "members": 3, "task_hidden": 8}


def unchecked(step):
    """Return a primitive that may exceed the bounds of `read_primitive`, as in an old record store."""
    return Primitive(step[0], tuple(tuple(a) if isinstance(a, list) else a for a in step[1:]))


def nests_of(*candidates):
    distinct = {}
    indices = [distinct.setdefault(p, len(distinct)) for candidate in candidates for p in candidate]
    lengths = np.array([len(candidate) for candidate in candidates], dtype=np.int64)
    return features.nests(list(distinct), np.array(indices, dtype=np.int64), lengths)


def index_of(candidates):
    found = request(candidates)
    return found.primitives, found.indices, found.lengths


def steps_of(line):
    return [read_primitive(step) for step in json.loads(line)["i"][1][1]]


def test_a_nest_by_hand():
    """Two loops of 4 and 16: logarithms are divided by 8."""
    (nest,) = nests_of([read_primitive(["SP", 0, 0, 64, [16], 1])])
    loops = skeleton.SUMS
    assert nest[0] == 6 / 8  # iterations in all: 64
    assert nest[6:9].tolist() == [2 / 8, 4 / 8, 0]  # levels of the reduction, which one factor makes it
    assert nest[loops : loops + 3].tolist() == [4 / 8, 2 / 8, 0]  # loops from the innermost
    cumulated = loops + skeleton.LOOPS
    assert nest[cumulated : cumulated + 3].tolist() == [4 / 8, 6 / 8, 6 / 8]
    assert nest.shape == (features.NEST_WIDTH,)


def test_sizes_that_are_no_sizes_count_as_one():
    steps = [["SP", 0, 0, -5, [0, -3], 1], ["SP", 0, 0, 0, [], 1], ["SP", 0, 0, 2**31 - 1, [2**30] * 7, 1]]
    for step in steps:
        assert np.isfinite(nests_of([read_primitive(step)])).all()


def test_the_unroll_step_is_read_from_its_pragma():
    column = 1 + 5 + 3 + 6 + 2
    split = read_primitive(["SP", 0, 0, 64, [16], 1])
    found = [
        nests_of([split, read_primitive(["PR", 0, 0, pragma])])[0, column]
        for pragma in (
            "auto_unroll_max_step$511",
            "auto_unroll_max_step$0",
            "auto_unroll_max_step$1²",
            "unroll_explicit$3",
        )
    ]
    assert found == [9 / 8, 0, 0, 0]


@pytest.mark.slow
def test_a_candidate_longer_than_any_real_one_is_an_error_of_its_own(version):
    scorer = Scorer(version[0])
    steps = [["CI", 0]] * (MAX_STEPS + 1)
    with pytest.raises(InvalidRequest, match=r"candidates\[1\]: 513 primitives are more than the 512"):
        request([steps[1:], steps, steps[:1]])
    # Old record stores may contain such candidates, and nothing checks them before this.
    long = replace(
        request([steps[:1]]), indices=np.zeros(MAX_STEPS + 1, np.int64), lengths=np.array([MAX_STEPS + 1])
    )
    with pytest.raises(InvalidBody, match=r"candidates\[0\]: 513 primitives are more than the 512"):
        scorer.score(long)


class Opcodes:
    """Counts the instructions that the interpreter runs meanwhile: work that no other load of the machine changes."""

    def __enter__(self):
        self.count = 0
        sys.settrace(self._called)
        return self

    def __exit__(self, *exception):
        sys.settrace(None)

    def _called(self, frame, event, argument):
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._ran

    def _ran(self, frame, event, argument):
        self.count += event == "opcode"
        return self._ran


@pytest.mark.slow
@pytest.mark.parametrize(
    "candidates",
    [
        [[]] * 2700 + [[["CI", 0]] * 512],
        [[["SP", 0, 0, 8, [2], 1]] * 512],
        [[["CHW", 0, "local"]] * 512],
        [[["RE", 0, list(range(100_000))]] * 100],
        [[["SP", 0, 0, 2**31 - 1, [2**31 - 1] * 100_000, 1]] * 10],
        [[["SP", n, 0, 8, [1] * 64, 1] for n in range(9)] + [["FFSP", 0, 0, [*range(9)] * 7, n,
            1] for n in range(500)]],
    ],
)  # fmt: skip
def test_what_is_made_to_be_slow_is_not(candidates):
    """Each took seconds or gigabytes once. Most are beyond what is accepted by now."""
    skeleton.SKELETONS.clear()
    entries = sum(
        len(a) if isinstance(a, list) else 1 for steps in candidates for step in steps for a in step
    )
    read = [[unchecked(step) for step in steps] for steps in candidates]
    tracemalloc.start()
    try:
        with Opcodes() as opcodes:
            found = nests_of(*read)
        # What grows faster than its input is beyond this by orders of magnitude.
        assert opcodes.count <= 20_000 + 80 * (entries + len(candidates))
        assert np.isfinite(found).all()
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()


def new_skeletons(count, steps=40):
    """Return candidates that each have a skeleton of their own."""
    same = [["SP", 0, 0, 64, [4, 2, 8], 1], *[["AN", 0, 1, 1]] * (steps - 2)]
    return [[*same, ["PR", 0, 0, f"a pragma {n}"]] for n in range(count)]


def test_one_request_is_computed_in_steps_each_of_which_replays_one_skeleton_at_most(monkeypatch):
    """A valid request may have 65,536 new skeletons, and replaying each takes milliseconds."""
    replayed = []
    replay = skeleton._replayed
    monkeypatch.setattr(skeleton, "_replayed", lambda steps: replayed.append(len(steps)) or replay(steps))
    skeleton.SKELETONS.clear()
    request_ = request(new_skeletons(30))
    steps = features.nests_in_steps(request_.primitives, request_.indices, request_.lengths)
    replayed_before, costs = [], []
    with contextlib.suppress(StopIteration):
        while True:
            costs.append(next(steps))
            replayed_before.append(len(replayed))
    assert sorted(set(replayed_before)) == list(range(30))
    assert len(replayed) == 30
    # A step that replays is recognised by its cost, which only the step per block exceeds.
    assert costs.count(features._SKELETON_COST + 40 * features._REPLAY_COST) == 30


@pytest.mark.slow
def test_many_places_are_laid_out_in_blocks_that_are_steps():
    steps = list(features.nests_in_steps(*index_of([[["CI", 0]] * 500] * 1000)))
    replayed = features._SKELETON_COST + 500 * features._REPLAY_COST
    blocks = [cost for cost in steps if cost > features._BLOCK_COST and cost != replayed]
    assert len(blocks) == math.ceil(500 * 1000 / (features._BLOCK_PLACES // 500 * 500))
    assert max(steps) <= 1 << 20  # about 20 ms


def test_what_is_kept_of_replayed_skeletons_is_bounded_in_bytes(monkeypatch):
    """Memory was ten times the bound.

    The cache counted skeletons, and a made-up one is twenty times as large as an ordinary one.
    """
    bound = 50_000
    few = skeleton._Skeletons(bound)
    monkeypatch.setattr(features, "SKELETONS", few)
    kept = []
    nests = []
    for candidate in new_skeletons(150, steps=60):
        nests.append(nests_of(list(map(read_primitive, candidate))))
        kept.append(few.nbytes)
    assert max(kept) <= bound
    assert sum(found.nbytes for found in few._kept.values()) == few.nbytes > bound // 2
    assert 10 * bound < 150 * few.nbytes / len(few._kept)
    few.clear()
    assert few.nbytes == 0
    assert (nests_of(list(map(read_primitive, new_skeletons(1, steps=60)[0]))) == nests[0]).all()


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(any_primitive(), max_size=12), min_size=1, max_size=6), st.randoms())
def test_a_candidates_numbers_depend_on_nothing_else(candidates, random):
    """Alone, among others, in another order, with a skeleton that is known already: the same to the last bit."""
    together = nests_of(*candidates)
    assert np.isfinite(together).all()
    order = list(range(len(candidates)))
    random.shuffle(order)
    np.testing.assert_array_equal(nests_of(*(candidates[n] for n in order)), together[order])
    skeleton.SKELETONS.clear()
    for candidate, nest in zip(candidates, together, strict=True):
        np.testing.assert_array_equal(nests_of(candidate)[0], nest)


@pytest.mark.parametrize(
    ("key", "numbers"),
    [
        ('["hash", [1, 64], [3, 3]]', 4), ('["f", 128, true, 2.5, null]', 1), ("no JSON", 0), ("[" * 5000, 0),
        ("17", 1),
        (json.dumps(["f", *range(40)]), 40),
    ],
)  # fmt: skip
def test_any_workload_key_has_a_row(key, numbers):
    row = task_row(key, None)
    assert row.shape == (TASK_WIDTH,)
    assert np.isfinite(row).all()
    assert row[_KEY_NUMBERS * (1 + _A_NUMBER)] == numbers / 16


def test_numbers_are_told_apart():
    described = {tuple(_describe(n)) for n in range(-1, 3000)}
    assert len(described) == 3000  # all numbers below 1 are one
    assert np.isfinite(_describe(2**31)).all()


def test_platforms_have_a_column_each():
    rows = [task_row("[]", n) for n in (None, 0, PLATFORMS - 1)]
    assert [row[-PLATFORMS:].sum() for row in rows] == [0, 1, 1]
    assert rows[2][-1] == 1


@pytest.fixture(scope="module")
def trained(measured_lines):
    """A network that nobody trained; its pieces are those of some real nests."""
    torch.manual_seed(3)
    nests = nests_of(*map(steps_of, measured_lines))
    return LoopNestNetwork(
        TASK_WIDTH, Pieces.cutting(torch.from_numpy(nests.astype(np.float32))), **SMALL
    ).eval()


@pytest.fixture(scope="module")
def version(trained, tmp_path_factory, measured_lines):
    folder = tmp_path_factory.mktemp("loopnest")
    nests = nests_of(*map(steps_of, measured_lines))
    table = np.stack([task_row(f'["f", {n}]', n) for n in range(3)])
    positions = np.arange(len(nests), dtype=np.int32)[:, None] % 3
    sample = Sample(table, positions, nests)
    assert export_onnx(trained, sample, folder / "cpu.onnx") <= 1e-5
    network = Network(
        platform_kind="cpu",
        file="cpu.onnx",
        sha256=sha256_of(folder / "cpu.onnx"),
        features="loopnest",
        steps=1,
        row_width=TASK_WIDTH,
        platforms=["a", "b", "c"],
        score_map=ScoreMap("softsign", 0.0, 0.1),
        architecture=trained.architecture,
    )
    manifest = Manifest(
        SCHEMA, "loopnest", version_name("loopnest", [network]), "2026-01-01T00:00:00+00:00", [network]
    )
    return write_version(folder, manifest, {"cpu.onnx": folder / "cpu.onnx"}), sample


def request(candidates, platform="a", key='["f", 1]'):
    task = {"workload_key": key, "target": "llvm", "platform": platform}
    return read_predict({"format": 1, "task": task, "candidates": candidates})


@pytest.fixture(scope="module")
def real_steps(measured_lines):
    return [json.loads(line)["i"][1][1] for line in measured_lines[:100]]


@pytest.mark.slow
def test_a_candidates_score_is_the_same_alone_in_any_batch_and_order(version, real_steps):
    scorer = Scorer(version[0])
    together = scorer.score(request(real_steps), chunk=32).scores
    assert len(set(together.tolist())) > 90
    order = np.random.default_rng(0).permutation(len(real_steps))
    shuffled = scorer.score(request([real_steps[n] for n in order]), chunk=7).scores
    np.testing.assert_allclose(shuffled, together[order], rtol=1e-5)
    for n in (0, 17, 99):
        np.testing.assert_allclose(scorer.score(request([real_steps[n]])).scores, together[n], rtol=1e-5)


@pytest.mark.slow
def test_workload_and_platform_are_inputs(version, real_steps):
    scorer = Scorer(version[0])
    asked = [("a", '["f", 1]'), ("b", '["f", 1]'), ("cpu", '["f", 1]'), ("a", '["f", 2]')]
    scores = [scorer.score(request(real_steps, *task)).scores for task in asked]
    for n, one in enumerate(scores):
        assert not any(np.allclose(one, other, rtol=1e-4) for other in scores[:n])


@pytest.mark.slow
def test_no_length_and_no_kind_is_refused(version):
    scorer = Scorer(version[0])
    kinds = [["SA", 1, 2, 3, 4], ["RF", 0, 1, 0], ["CI", 1], ["CHR", 0, "shared", [1]]]
    scored = scorer.score(request([[], kinds, kinds * 40]))
    assert np.isfinite(scored.scores).all()
    assert (scored.errors, scored.truncated) == ({}, 0)


@pytest.mark.slow
def test_the_weights_are_read_back(trained, version):
    weights = read_weights(version[0] / "cpu.onnx")
    assert set(weights) == set(trained.state_dict())
    again = LoopNestNetwork(TASK_WIDTH, **trained.architecture)
    again.load_state_dict(weights)
    assert check_equal(again.eval(), version[1], version[0] / "cpu.onnx") <= 1e-5


@pytest.mark.slow
def test_a_network_of_other_features_is_refused(version, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "NEST_WIDTH", features.NEST_WIDTH + 1)
    with pytest.raises(
        BadVersion, match=rf"its features 'loopnest' are {TASK_WIDTH} x {features.NEST_WIDTH}"
    ):
        Scorer(version[0])


def test_numbers_are_cut_where_they_differ():
    """A constant, three values, many, and a few beside a mode.

    Bins are at each value, at quantiles, and where quantiles leave the mode.
    """
    many = torch.arange(101.0)
    rare = torch.where(many > 80, many, 7.0)
    pieces = Pieces.cutting(torch.stack([torch.ones(101), many % 3, many, rare], dim=1))
    ends = zip(
        pieces.columns.tolist(), pieces.middle - pieces.reach, pieces.middle + pieces.reach, strict=True
    )
    cuts = [(column, low.item(), high.item()) for column, low, high in ends]
    assert cuts[:2] == [(1, 0, 1), (1, 1, 2)]
    eighths = [0, 12, 25, 38, 50, 62, 75, 88, 100]  # half a place is rounded to the even one
    assert cuts[2:10] == [(2, *pair) for pair in pairwise(eighths)]
    assert cuts[10:] == [(3, 7, 88), (3, 88, 100)]


def test_a_piece_rises_in_a_line_and_is_flat_outside():
    pieces = Pieces.cutting(torch.tensor([[0.0], [2.0], [6.0]]))
    found = pieces(torch.tensor([[-5.0], [0.0], [1.0], [2.0], [3.0], [6.0], [60.0]]))
    assert found.tolist() == [[-1, -1], [-1, -1], [0, -1], [1, -1], [1, -0.5], [1, 1], [1, 1]]


@pytest.mark.slow
def test_one_piece_is_exported_and_none_is_an_error(tmp_path):
    nests = np.zeros((9, features.NEST_WIDTH), dtype=np.float16)
    nests[4, 7] = 1
    network = LoopNestNetwork(TASK_WIDTH, Pieces.cutting(torch.from_numpy(nests).float()), **SMALL).eval()
    sample = Sample(task_row("[]", 0)[None], np.zeros((9, 1), dtype=np.int32), nests)
    assert export_onnx(network, sample, tmp_path / "one.onnx") <= 1e-5
    assert read_weights(tmp_path / "one.onnx")["pieces.columns"].tolist() == [7]
    task = TrainingTask("p", "w", sample.positions, nests[:3], np.ones(3))
    alike = TrainingSet(sample.table, (task,), ("p",))
    with pytest.raises(BadRecords, match="all alike"):
        preset_named("loopnest").network(alike, preset_named("loopnest").settings, None)


def test_members_are_networks_of_their_own(trained):
    """The mean of the members is the score; changing one changes its share only."""
    generator = torch.Generator().manual_seed(0)
    nests = torch.rand(5, features.NEST_WIDTH, generator=generator)
    table, positions = (
        torch.rand(2, TASK_WIDTH, generator=generator),
        torch.tensor([[0], [1], [0], [1], [0]]),
    )
    with torch.no_grad():
        before = trained.member_scores(table, positions, nests)
        torch.testing.assert_close(trained.score_distinct(table, positions, nests), before.mean(0))
        trained.head.bias[1] += 3
        after = trained.member_scores(table, positions, nests)
        trained.head.bias[1] -= 3
    torch.testing.assert_close(after - before, torch.tensor([0.0, 3.0, 0.0])[:, None].expand(3, 5))
