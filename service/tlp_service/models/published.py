"""The published TLP network.

Source: TLP (arXiv 2211.03578, section 4.3) and its public code: per-step MLP 64-128-256-256, 8-head
self-attention with a residual, two residual blocks, a 256-128-64-1 head for each step, and the sum over the steps.
Padding rows take part like any other, as published.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

HIDDEN = (64, 128, 256, 256)
HEAD = (256, 128, 64)
ATTENTION_HEADS = 8
RESIDUAL_BLOCKS = 2


class SelfAttention(nn.Module):
    """Multi-head self-attention over the steps, without mask or dropout.

    The same function as ``torch.nn.MultiheadAttention`` with equal weights; written out since that module
    switches to a fused kernel in evaluation, which does not export.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        # the initialisation of MultiheadAttention
        nn.init.xavier_uniform_(self.project_in.weight)
        nn.init.zeros_(self.project_in.bias)
        nn.init.zeros_(self.project_out.bias)

    def forward(self, steps: Tensor) -> Tensor:
        """Map (candidates, steps, width) to the same shape."""
        split = self.project_in(steps).unflatten(-1, (3, self.heads, -1))  # (N, S, 3, heads, width / heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        # Not scaled_dot_product_attention: raw extents up to 3e8 give logits so large that its backward pass, which
        # computes exp(logit - logsumexp) anew, overflows to NaN.
        logits = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        attended = torch.softmax(logits, dim=-1) @ value
        out: Tensor = self.project_out(attended.transpose(1, 2).flatten(-2))
        return out


class PublishedNetwork(nn.Module):
    """Scores candidates from their rows.

    Parameters
    ----------
    row_width : int
        Numbers a row: 22 on CPUs, 20 on GPUs.
    """

    def __init__(self, row_width: int) -> None:
        super().__init__()
        self.encoder = _relu_chain(row_width, *HIDDEN)
        self.attention = SelfAttention(HIDDEN[-1], ATTENTION_HEADS)
        self.residuals = nn.ModuleList(_relu_chain(HIDDEN[-1], HIDDEN[-1]) for _ in range(RESIDUAL_BLOCKS))
        self.head = nn.Sequential(*_relu_chain(HIDDEN[-1], *HEAD), nn.Linear(HEAD[-1], 1))

    def forward(self, rows: Tensor) -> Tensor:
        """Return the raw score of each candidate, higher is faster.

        Parameters
        ----------
        rows : Tensor, shape (candidates, steps, row_width)

        Returns
        -------
        Tensor, shape (candidates,)
        """
        return self.score(self.encoder(rows))

    def score_distinct(self, table: Tensor, positions: Tensor) -> Tensor:
        """Return the raw scores from a table of distinct rows, each encoded once.

        Parameters
        ----------
        table : Tensor, shape (distinct rows, row_width)
        positions : Tensor of int, shape (candidates, steps)
            Which row of the table stands at each step.
        """
        used, places = torch.unique(positions, return_inverse=True)
        # index_select and not indexing: the gradient of indexing adds up in the order of the threads.
        encoded = self.encoder(table[used]).index_select(0, places.flatten())
        return self.score(encoded.unflatten(0, places.shape))

    def score(self, encoded: Tensor) -> Tensor:
        """Return the raw scores from encoded rows, shape (candidates, steps, 256)."""
        steps = self.attention(encoded) + encoded
        for block in self.residuals:
            steps = block(steps) + steps
        return torch.sum(self.head(steps), dim=(1, 2))


def _relu_chain(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide_in, wide_out in pairwise(widths):
        layers += [nn.Linear(wide_in, wide_out), nn.ReLU()]
    return nn.Sequential(*layers)
