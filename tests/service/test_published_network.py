from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tlp_client.primitives import read_primitive
from tlp_service.errors import BadVersion
from tlp_service.families.published.features import PUBLISHED
from tlp_service.families.published.network import MultiHeadNetwork, PublishedNetwork, SelfAttention
from tlp_service.families.published.plan import RowPlan
from tlp_service.inference.network import OnnxNetwork
from tlp_service.training import export
from tlp_service.training.export import check_equal, export_onnx, read_weights
from tlp_service.training.form import Sample

#: the published network reads rows only
NO_VALUES = np.empty((64, 0), dtype=np.float32)


@pytest.fixture
def network():
    torch.manual_seed(1)
    return PublishedNetwork(22).eval()


def test_a_head_alone_is_the_published_network_and_scores_as_among_others():
    torch.manual_seed(2)
    network = MultiHeadNetwork(22, heads=3).eval()
    table, positions = torch.from_numpy(rows(1)[0]), torch.randint(0, 25, (12, 25))
    heads = torch.tensor([0, 2, 2, 0, 2, 0, 2, 2, 0, 0, 2, 2])  # none of the second
    with torch.inference_mode():
        together = network.score_distinct(table, positions, heads[:, None].float())
        for head in (0, 2):
            alone = network.alone(head)(table[positions[heads == head]])
            torch.testing.assert_close(together[heads == head], alone)
        assert len(set(together.tolist())) == 12


def rows(count, steps=25, width=22):
    return np.random.default_rng(0).integers(0, 64, (count, steps, width)).astype(np.float32)


def test_the_attention_is_torchs_own():
    torch.manual_seed(0)
    ours, theirs = SelfAttention(256, 8), nn.MultiheadAttention(256, 8, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.project_in.weight)
        theirs.in_proj_bias.copy_(ours.project_in.bias)
        theirs.out_proj.weight.copy_(ours.project_out.weight)
        theirs.out_proj.bias.copy_(ours.project_out.bias)
    steps = torch.randn(3, 25, 256)
    torch.testing.assert_close(ours(steps), theirs(steps, steps, steps)[0], rtol=1e-5, atol=1e-6)


def test_the_layers_are_those_of_the_paper(network):
    shapes = [tuple(p.shape) for name, p in network.named_parameters() if name.endswith("weight")]
    assert shapes == [
        (64, 22), (128, 64), (256, 128), (256, 256),
        (768, 256), (256, 256),
        (256, 256), (256, 256),
        (256, 256), (128, 256), (64, 128), (1, 64),
    ]  # fmt: skip


def test_the_network_step_by_step(network):
    batch = torch.from_numpy(rows(3))
    with torch.no_grad():
        encoded = network.encoder(batch)
        steps = network.attention(encoded) + encoded
        for block in network.residuals:
            steps = torch.relu(block[0](steps)) + steps
        expected = network.head(steps).sum(dim=(1, 2))
        torch.testing.assert_close(network(batch), expected)
    assert expected.shape == (3,)


def test_scoring_from_distinct_rows_is_scoring_from_all(network):
    table = torch.from_numpy(rows(1, steps=9)[0])
    positions = torch.randint(0, 9, (5, 25))
    with torch.no_grad():
        torch.testing.assert_close(
            network.score_distinct(table, positions), network(table[positions]), rtol=1e-5, atol=1e-5
        )


def test_extents_as_large_as_real_ones_leave_the_gradient_finite():
    torch.manual_seed(0)
    network = PublishedNetwork(20)
    batch = torch.from_numpy(rows(4, 40, 20)) * 5e6
    network(batch).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters())


def lengths_and_indices(lengths, distinct):
    """Return candidates of these lengths over `distinct` primitives, drawn with a fixed seed."""
    lengths = np.asarray(lengths)
    return np.random.default_rng(2).integers(0, distinct, lengths.sum()), lengths


@pytest.fixture(scope="module")
def table():
    primitives = [read_primitive(["SP", n, 0, 64, [n, 2, 1], 1]) for n in range(1, 9)]
    return PUBLISHED["cpu"].rows(primitives)[0]


@pytest.fixture(scope="module")
def exported(tmp_path_factory, table):
    torch.manual_seed(1)
    network = PublishedNetwork(22).eval()
    path = tmp_path_factory.mktemp("onnx") / "cpu.onnx"
    indices, lengths = lengths_and_indices([25, 3, 0, 1, 12, 12, 24], 8)
    positions = PUBLISHED["cpu"].positions(indices, lengths)
    assert export_onnx(network, Sample(table, positions, NO_VALUES[: len(positions)]), path) <= 1e-5
    return network, path


def padded_scores(network, table, indices, lengths):
    """The published computation: every padding row like any other."""
    with torch.no_grad():
        return network(torch.from_numpy(table[PUBLISHED["cpu"].positions(indices, lengths)])).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2, 3, 7, 64, 2048])
def test_the_exported_file_takes_any_batch(exported, table, batch):
    network, path = exported
    indices, lengths = lengths_and_indices([n % 27 for n in range(batch)], 8)
    actual = OnnxNetwork(path, "cpu").score_all(table, RowPlan.of(indices, lengths, 25))
    assert actual.shape == (batch,)
    expected = padded_scores(network, table, indices, lengths)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_candidates_of_any_length_score_as_the_padded_network_scores_them(exported, table):
    """From none to more primitives than the network reads; each alone and all in one batch."""
    network, path = exported
    indices, lengths = lengths_and_indices([1, 25, 54, 0, 24], 8)
    expected = padded_scores(network, table, indices, lengths)
    exported_network = OnnxNetwork(path, "cpu")
    together = exported_network.score_all(table, RowPlan.of(indices, lengths, 25))
    np.testing.assert_allclose(together, expected, rtol=1e-5, atol=1e-5)
    starts = np.cumsum(lengths) - lengths
    for start, length, score in zip(starts, lengths, expected, strict=True):
        plan = RowPlan.of(indices[start : start + length], np.array([length]), 25)
        alone = exported_network.score_all(table, plan)
        np.testing.assert_allclose(alone, [score], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_exported_file_names_no_place_of_the_machine_that_made_it(exported):
    contents = exported[1].read_bytes()
    assert b"site-packages" not in contents
    assert str(Path(__file__).parents[2]).encode() not in contents


@pytest.mark.slow
def test_the_weights_are_read_back_by_their_names(exported):
    network, path = exported
    weights = read_weights(path)
    assert set(weights) == set(network.state_dict())
    assert all(torch.equal(weights[name], value) for name, value in network.state_dict().items())


@pytest.mark.slow
def test_an_export_leaves_torchs_random_numbers_as_they_were(tmp_path, table):
    network = PublishedNetwork(22)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    export._TEMPLATES.clear()
    export_onnx(
        network, Sample(table, np.zeros((1, 25), dtype=np.int32), NO_VALUES[:1]), tmp_path / "cpu.onnx"
    )
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.slow
def test_a_file_that_scores_otherwise_is_not_published(exported, table):
    network, path = exported
    positions = PUBLISHED["cpu"].positions(*lengths_and_indices([5, 25], 8))
    with torch.no_grad():
        network.head[-1].bias += 0.01
    with pytest.raises(BadVersion, match="differs from torch"):
        check_equal(network, Sample(table, positions, NO_VALUES[: len(positions)]), path)
