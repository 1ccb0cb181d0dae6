import itertools
import json
from dataclasses import replace

import msgspec
import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import linear_score, write_linear_version

from tlp_client.wire.predict import read_predict
from tlp_service.errors import BadSettings, BadVersion, InvalidBody, ScoringFailed
from tlp_service.families.published.features import PUBLISHED
from tlp_service.inference import network
from tlp_service.inference.network import OnnxNetwork, usable_cpus
from tlp_service.inference.score_map import fit_score_map, map_scores
from tlp_service.scoring.scorer import Scorer
from tlp_service.settings import shipped_model
from tlp_service.versions.manifest import Manifest, ScoreMap, read_manifest, write_version


@pytest.fixture(scope="module")
def shipped():
    return Scorer(shipped_model())


def request(candidates, primitives=None, target="llvm", **fields):
    task = {"workload_key": "[]", "target": target}
    return read_predict(
        {"format": 1, "task": task, "primitives": primitives, "candidates": candidates, **fields}
    )


def steps_of(line):
    return json.loads(line)["i"][1][1]


def test_scores_by_hand(scorer):
    scored = scorer.score(request([[0, 1], [1], []], [["CI", 1], ["CI", 2]]))
    assert scored.scores.tolist() == [linear_score(3), linear_score(2), linear_score(0)]
    assert scored.scores.tolist() == pytest.approx([7 / 8, 5 / 6, 1 / 2])
    assert (scored.platform_kind, scored.errors, scored.truncated) == ("cpu", {}, 0)


def test_scores_do_not_depend_on_the_chunk(shipped, measured_lines):
    candidates = [steps_of(line) for line in measured_lines]
    whole = shipped.score(request(candidates), chunk=4096).scores
    np.testing.assert_allclose(shipped.score(request(candidates), chunk=7).scores, whole, rtol=1e-5)


def test_candidates_beyond_the_networks_length_are_cropped_and_counted(scorer):
    scored = scorer.score(request([[0] * 26, [0] * 25, [0] * 100], [["CI", 1]]))
    assert scored.scores.tolist() == [linear_score(25)] * 3
    assert scored.truncated == 2


@pytest.mark.parametrize("count", [1, 31, 32, 33, 320, 321])
def test_any_number_of_candidates_is_split_inside_and_stays_in_order(scorer, count):
    scored = scorer.score(request([[n % 7] * (n % 5) for n in range(count)], [["CI", n] for n in range(7)]))
    assert scored.scores.tolist() == [linear_score((n % 7) * (n % 5)) for n in range(count)]


def test_an_unscorable_primitive_refuses_the_request_or_its_candidates(scorer):
    primitives = [["CI", 1], ["SA", 1, 2, 3, 4]]
    with pytest.raises(InvalidBody, match=r"candidates\[1\], primitive 2: the published cpu vocabulary"):
        scorer.score(request([[0], [0, 0, 1], [1]], primitives))
    scored = scorer.score(request([[0], [0, 0, 1], [1], [0]], primitives, on_invalid="report"))
    assert sorted(scored.errors) == [1, 2]
    assert np.isnan(scored.scores).tolist() == [False, True, True, False]


def test_a_network_that_gives_nan_is_an_error_for_its_candidate(tmp_path):
    scorer = Scorer(write_linear_version(tmp_path, factor=3e38))
    with pytest.raises(ScoringFailed, match=r"candidates\[1\].*not finite"):
        scorer.score(request([[0], [1]], [["CI", 0], ["CI", 100]]))
    scored = scorer.score(request([[0], [1]], [["CI", 0], ["CI", 100]], on_invalid="report"))
    assert list(scored.errors) == [1]
    assert scored.scores[0] == 0.5


def test_a_network_that_gives_nan_for_every_candidate_is_not_loaded(tmp_path):
    with pytest.raises(BadVersion, match="not finite"):
        Scorer(write_linear_version(tmp_path, factor=float("nan")))


def test_three_lengths_in_all_orders_score_as_alone(shipped, measured_lines, cuda_lines):
    for lines in (measured_lines, cuda_lines):
        target = json.loads(lines[0])["i"][0][1]
        by_length = sorted((steps_of(line) for line in lines), key=len)
        chosen = [by_length[0][:4], by_length[len(by_length) // 2], (by_length[-1] * 3)[:54]]
        alone = {len(c): shipped.score(request([c], target=target)).scores[0] for c in chosen}
        for order in itertools.permutations(chosen):
            together = shipped.score(request(list(order), target=target)).scores
            np.testing.assert_allclose(together, [alone[len(c)] for c in order], rtol=1e-5)


def test_old_and_new_spellings_of_a_target_score_alike(shipped, measured_lines):
    candidate = [steps_of(measured_lines[0])]
    targets = ("llvm", "llvm -keys=cpu -link-params=0", "llvm -keys=cpu -mcpu=core-avx2", '{"kind": "llvm"}')
    assert len({float(shipped.score(request(candidate, target=t)).scores[0]) for t in targets}) == 1


def test_the_shipped_model_ranks_its_own_platform_better_than_chance(shipped, measured_lines):
    from tlp_service.ranking.ranking import rank_tasks

    tasks = {}
    for line in measured_lines:
        document = json.loads(line)
        if document["r"][1] == 0:
            tasks.setdefault(document["i"][0][0], []).append(document)
    ranking = rank_tasks(
        (
            shipped.score(request([d["i"][1][1] for d in documents], on_invalid="report")).scores,
            np.array([np.median(d["r"][0]) for d in documents]),
        )
        for documents in tasks.values()
    )
    assert ranking.tasks == 10
    assert ranking.pair_accuracy > 0.6


@settings(max_examples=50)
@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=20), st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_scores_are_positive_below_one_and_in_the_order_of_the_raw(raw, center, scale):
    scores = map_scores(np.array(raw), ScoreMap("softsign", center, scale))
    assert ((scores > 0) & (scores <= 1)).all()
    order = np.argsort(raw)
    assert (np.diff(scores[order]) >= 0).all()


def test_scores_far_from_the_training_set_still_differ():
    raw = np.array([-1e300, -1e17, -1e9, -1e6, -10.0, 10.0, 1e6, 1e9])
    scores = map_scores(raw, ScoreMap("softsign", 0.0, 1.0))
    assert (np.diff(scores) > 0).all()
    assert scores[0] > 0


def test_the_map_is_fit_to_the_quartiles():
    fitted = fit_score_map(np.array([0.0, 10.0, 20.0, 30.0, 40.0]))
    assert (fitted.center, fitted.scale) == (20.0, 20.0)
    assert map_scores(np.array([10.0, 20.0, 30.0]), fitted).tolist() == pytest.approx([1 / 3, 1 / 2, 2 / 3])
    assert fit_score_map(np.zeros(5)).scale > 0


def test_cuda_where_there_is_none_is_refused_and_never_the_cpu(tmp_path):
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    with pytest.raises(BadSettings, match="TLP_DEVICE=cuda: this onnxruntime has no CUDAExecutionProvider"):
        Scorer(write_linear_version(tmp_path), "cuda")


def test_cuda_that_is_listed_but_does_not_start_is_refused(tmp_path, monkeypatch):
    # A machine with onnxruntime-gpu but without its libraries can't be had: onnxruntime then lists the provider
    # and silently takes the CPU. Only the listing is faked here; the session is real.
    folder = write_linear_version(tmp_path)
    listed = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(network.onnxruntime, "get_available_providers", lambda: listed)
    real = onnxruntime.InferenceSession

    def falls_back(path, options, providers):
        return real(path, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(network.onnxruntime, "InferenceSession", falls_back)
    with pytest.raises(BadSettings, match="runs the network on CPUExecutionProvider instead"):
        Scorer(folder, "cuda")


def test_a_file_that_is_no_network_is_refused(tmp_path):
    path = tmp_path / "cpu.onnx"
    path.write_bytes(b"not a network")
    with pytest.raises(BadVersion, match="onnxruntime cannot load it"):
        OnnxNetwork(path, "cpu")


def test_a_network_of_another_shape_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(PUBLISHED, "cpu", replace(PUBLISHED["cpu"], steps=54))
    folder = write_linear_version(tmp_path)
    monkeypatch.undo()
    with pytest.raises(
        BadVersion, match="the cpu network reads 54 x 22 numbers, its features 'published' are 25 x 22"
    ):
        Scorer(folder)


def test_a_manifest_that_states_another_width_is_refused(tmp_path):
    manifest = read_manifest(write_linear_version(tmp_path / "linear", platforms={"cpu": ["epyc"]}))
    (network,) = (msgspec.structs.replace(n, row_width=23) for n in manifest.networks)
    wrong = Manifest.of_now("published", [network], {})
    source = tmp_path / "linear" / "versions" / manifest.version / network.file
    folder = write_version(tmp_path / "wrong", wrong, {network.file: source})
    with pytest.raises(
        BadVersion, match=r"cpu\.onnx: expected rows of 23 numbers, as the manifest says, got 22"
    ):
        Scorer(folder)


@pytest.mark.parametrize(
    ("affinity", "quota", "cpus"),
    [
        (8, "max 100000", 8),
        (8, "200000 100000", 2),
        (8, "150000 100000", 2),
        (2, "900000 100000", 2),
        (4, "", 4),
    ],
)
def test_the_threads_are_those_this_process_may_use(tmp_path, monkeypatch, affinity, quota, cpus):
    path = tmp_path / "cpu.max"
    if quota:
        path.write_text(quota + "\n")
    monkeypatch.setattr(network, "_CPU_QUOTA", path)
    monkeypatch.setattr(network.os, "sched_getaffinity", lambda pid: set(range(affinity)))
    assert usable_cpus() == cpus
