import math

import pytest
import torch

from tlp_service.training.losses import log_mse_loss, mse_loss, pair_loss, rank_loss, validity_loss


def by_hand(scores, labels):
    """The rank loss of one list, from its definition, pair by pair."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    rank = {item: position + 1 for position, item in enumerate(order)}
    discount = [math.log2(1 + rank[i]) for i in range(len(scores))]
    ideal = sum(
        (2**label - 1) / math.log2(2 + position)
        for position, label in enumerate(sorted(labels, reverse=True))
    )
    gain = [(2**label - 1) / ideal for label in labels]
    loss = 0.0
    for i in range(len(scores)):
        for j in range(len(scores)):
            if labels[i] > labels[j]:
                weight = abs(gain[i] - gain[j]) * abs(1 / discount[i] - 1 / discount[j])
                loss -= weight * math.log2(1 / (1 + math.exp(scores[j] - scores[i])))
    return loss


SCORES, LABELS = [0.3, 2.0, -1.0, 0.5], [1.0, 0.25, 0.5, 0.125]


def test_the_rank_loss_is_its_definition():
    loss = rank_loss(torch.tensor([SCORES]), torch.tensor([LABELS]))
    assert loss.item() == pytest.approx(by_hand(SCORES, LABELS), rel=1e-5)


def test_lists_do_not_mix_and_padding_does_not_count():
    nan = math.nan
    scores = torch.tensor([[*SCORES, 9.0], [0.1, 0.2, 0.3, 5.0, -5.0]])
    labels = torch.tensor([[*LABELS, nan], [0.5, 1.0, 0.25, nan, nan]])
    expected = by_hand(SCORES, LABELS) + by_hand([0.1, 0.2, 0.3], [0.5, 1.0, 0.25])
    assert rank_loss(scores, labels).item() == pytest.approx(expected, rel=1e-5)


def test_the_gradient_moves_the_faster_candidate_up():
    scores = torch.tensor([SCORES], requires_grad=True)
    rank_loss(scores, torch.tensor([LABELS])).backward()
    assert scores.grad[0, 0] < 0 < scores.grad[0, 1]


@pytest.mark.parametrize("scores", [[1e30, -1e30], [0.0, 0.0], [-3e4, 3e4]])
def test_extreme_scores_leave_loss_and_gradient_finite(scores):
    wide = torch.tensor([scores], requires_grad=True)
    loss = rank_loss(wide, torch.tensor([[0.5, 1.0]]))
    loss.backward()
    assert math.isfinite(loss.item())
    assert torch.isfinite(wide.grad).all()


@pytest.mark.parametrize("labels", [[1.0, 1.0], [math.nan, math.nan], [1.0, math.nan]])
def test_a_list_without_an_ordered_pair_costs_nothing(labels):
    assert rank_loss(torch.tensor([[0.1, 0.2]]), torch.tensor([labels])).item() == 0


def test_the_squared_error_leaves_padding_out():
    loss = mse_loss(torch.tensor([[1.0, 2.0, 7.0]]), torch.tensor([[0.5, 1.0, math.nan]]))
    assert loss.item() == pytest.approx((0.25 + 1.0) / 2)


def lists(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_the_log_error_by_hand():
    """Of scores 0 and 2 against log labels 0 and -1: from their means, errors of -1.5 and 1.5."""
    labels = lists([1.0, math.exp(-1), math.nan])
    assert log_mse_loss(lists([0.0, 2.0, 9.0]), labels).item() == pytest.approx(2.25)
    assert log_mse_loss(lists([5.0, 4.0, 9.0]), labels).item() == pytest.approx(
        0.0
    )  # a constant changes nothing
    slow = lists([1.0, math.exp(-50), math.nan])
    assert log_mse_loss(lists([4.0, 0.0, 9.0]), slow).item() == pytest.approx(
        0.0
    )  # slower than exp(-4) is as slow


def test_the_pair_loss_by_hand():
    labels = lists([1.0, math.exp(-0.5), math.exp(-9), math.nan])
    scores = lists([1.0, 0.0, 0.0, 7.0])
    # pairs: (0, 1) of weight 0.5, (0, 2) of weight 1, (1, 2) of weight exp(-0.5), the faster one's label
    expected = (1.5 * math.log1p(math.exp(-1)) + math.exp(-0.5) * math.log(2)) / (1.5 + math.exp(-0.5))
    assert pair_loss(scores, labels).item() == pytest.approx(expected)
    assert pair_loss(scores, torch.ones_like(labels)).item() == 0.0  # equal costs have no order


def test_the_validity_loss_by_hand():
    labels, scores = lists([1.0, 1e-10, math.nan]), lists([2.0, -1.0, 5.0])
    expected = (math.log1p(math.exp(-2)) + math.log1p(math.exp(-1))) / 2
    assert validity_loss(scores, labels).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("loss", [log_mse_loss, pair_loss, validity_loss])
def test_padding_has_no_part_in_a_loss_nor_in_its_gradient(loss):
    scores = torch.tensor([[0.3, -1.0, 0.5]], dtype=torch.float64, requires_grad=True)
    alone = loss(scores, lists([1.0, 0.2, 0.7]))
    padded = torch.cat([scores, torch.full((1, 2), 1e8, dtype=torch.float64)], 1).detach().requires_grad_()
    with_padding = loss(padded, lists([1.0, 0.2, 0.7, math.nan, math.nan]))
    assert with_padding.item() == pytest.approx(alone.item())
    with_padding.backward()
    assert torch.isfinite(padded.grad).all()
    assert not padded.grad[0, 3:].any()
