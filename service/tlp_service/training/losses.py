"""Losses over lists of candidates."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EPSILON = 1e-10


def rank_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the LambdaRank loss that TLP was published with, summed over the lists.

    Every pair of a list whose order the labels give adds ``-w log2 sigmoid(s_i - s_j)``, with the weight
    ``w = |G_i - G_j| |1 / D(rank i) - 1 / D(rank j)|``: how much swapping the two would change the list's
    NDCG, where ``G = (2^label - 1) / maxDCG`` and ``D(rank) = log2(1 + rank)``.
    Sources: Burges, "From RankNet to LambdaRank to LambdaMART" (MSR-TR-2010-82); TLP (arXiv 2211.03578).

    Parameters
    ----------
    scores : Tensor, shape (lists, candidates)
        Raw scores.
    labels : Tensor, shape (lists, candidates)
        Best cost of the task over the candidate's cost, in (0, 1]; NaN where a list is padded. The
        published code makes one list of a whole batch, over all tasks; one list a task ranks
        only what a search compares.
    """
    is_real = torch.isfinite(labels)
    scores, order = scores.masked_fill(~is_real, -torch.inf).sort(dim=-1, descending=True)
    labels = labels.gather(-1, order)
    is_real = is_real.gather(-1, order)
    gains = torch.where(is_real, torch.pow(2.0, labels) - 1, 0.0)
    discounts = torch.log2(torch.arange(2, scores.shape[-1] + 2, dtype=scores.dtype, device=scores.device))
    ideal = (gains.sort(dim=-1, descending=True).values / discounts).sum(-1, keepdim=True).clamp(min=EPSILON)
    gains = gains / ideal
    weights = _differences(gains).abs() * _differences(1 / discounts).abs()
    # NaN labels compare false, so pairs with padding drop out.
    is_ordered = _differences(labels) > 0
    scores = scores.masked_fill(~is_real, 0.0)
    log_odds = torch.log2(torch.sigmoid(_differences(scores)).clamp(min=EPSILON))
    return -(weights * log_odds).masked_fill(~is_ordered, 0.0).sum()


def mse_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean squared error of the scores against the labels, padding (NaN) left out."""
    is_real = torch.isfinite(labels)
    return torch.mean((scores[is_real] - labels[is_real]) ** 2)


def log_mse_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean squared error of scores against log labels, both taken from their list's mean.

    A constant that is added to a list's scores changes nothing, as it changes no ranking.

    Parameters
    ----------
    scores, labels : Tensor, shape (lists, candidates)
        See `rank_loss`. Labels below exp(-4) are clipped, since differences among very slow candidates are irrelevant.
    """
    is_real = torch.isfinite(labels)
    count = is_real.sum(-1, keepdim=True)
    wanted = torch.log(torch.where(is_real, labels, 1.0)).clamp(min=-4.0)
    error = torch.where(is_real, scores - wanted, 0.0)
    error = torch.where(is_real, error - error.sum(-1, keepdim=True) / count, 0.0)
    return (error**2).sum() / is_real.sum()


def pair_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the weighted logistic loss over the pairs of each list (RankNet, Burges et al. 2005).

    The weight of a pair is the difference of its log labels, at most 1, times the larger label. So a pair that differs
    only by noise hardly counts, nor does a pair of two slow candidates, whose order is irrelevant to a search.

    Parameters
    ----------
    scores, labels : Tensor, shape (lists, candidates)
        See `rank_loss`.
    """
    is_real = torch.isfinite(labels)
    logs = torch.log(torch.where(is_real, labels, 1.0))
    both = is_real.unsqueeze(-1) & is_real.unsqueeze(-2)
    faster = torch.where(is_real, labels, 0.0).unsqueeze(-1)
    weights = torch.where(both, _differences(logs).clamp(0.0, 1.0) * faster, 0.0)
    losses = nn.functional.softplus(-_differences(torch.where(is_real, scores, 0.0)))
    return (weights * losses).sum() / weights.sum().clamp(min=EPSILON)


def validity_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of scores (log odds of a valid run) against labels of 1 and 0; NaN is padding."""
    is_real = torch.isfinite(labels)
    return nn.functional.binary_cross_entropy_with_logits(scores[is_real], labels[is_real])


def _differences(values: Tensor) -> Tensor:
    return values.unsqueeze(-1) - values.unsqueeze(-2)
