"""The published TLP network.

Source: TLP (arXiv 2211.03578, section 4.3) and its public code: per-step MLP 64-128-256-256, 8-head
self-attention with a residual, two residual blocks, a 256-128-64-1 head for each step, and the sum over the
steps. As published, padding rows are treated like any other row. Its multi-head form, MTL-TLP (section 5),
has one such head per platform.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tlp_service.families.published.plan import RowPlan
from tlp_service.inference.network import OnnxNetwork
from tlp_service.training.form import CANDIDATES, KNOWN, NEW, PLACES, Form, Sample
from tlp_service.training.network import ExportableNetwork, ScorePair, TrainableNetwork

HIDDEN = (64, 128, 256, 256)
HEAD = (256, 128, 64)
ATTENTION_HEADS = 8
RESIDUAL_BLOCKS = 2


class SelfAttention(nn.Module):
    """Multi-head self-attention over the steps, without mask or dropout.

    It computes the same function as ``torch.nn.MultiheadAttention`` with equal weights. That module cannot be
    used, because it switches to a fused kernel in evaluation, which cannot be exported.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        # the same initialization as in MultiheadAttention
        nn.init.xavier_uniform_(self.project_in.weight)
        nn.init.zeros_(self.project_in.bias)
        nn.init.zeros_(self.project_out.bias)

    def forward(self, steps: Tensor) -> Tensor:
        """Map (candidates, steps, width) to the same shape."""
        split = torch.unflatten(
            self.project_in(steps), -1, (3, self.heads, -1)
        )  # (N, S, 3, heads, width / heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        # Not scaled_dot_product_attention: raw extents up to 3e8 give logits so large that its backward pass,
        # which computes exp(logit - logsumexp) anew, overflows to NaN.
        logits = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        attended = torch.softmax(logits, dim=-1) @ value
        out: Tensor = self.project_out(attended.transpose(1, 2).flatten(-2))
        return out


class PublishedNetwork(ExportableNetwork):
    """Scores candidates from their rows.

    Parameters
    ----------
    row_width : int
        Numbers per row: 22 on CPUs, 20 on GPUs.
    """

    def __init__(self, row_width: int) -> None:
        super().__init__()
        self.encoder = _relu_chain(row_width, *HIDDEN)
        self.attention = SelfAttention(HIDDEN[-1], ATTENTION_HEADS)
        self.residuals = nn.ModuleList(_relu_chain(HIDDEN[-1], HIDDEN[-1]) for _ in range(RESIDUAL_BLOCKS))
        self.architecture: dict[str, int] = {}  # empty: the sizes are fixed by the paper
        self.head = _head()

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

    def score_distinct(self, table: Tensor, positions: Tensor, values: Tensor | None = None) -> Tensor:
        """Return the raw scores from a table of distinct rows, each encoded once.

        Parameters
        ----------
        table : Tensor, shape (distinct rows, row_width)
        positions : Tensor of int, shape (candidates, steps)
            Index into the table for each step.
        values : Tensor or None
            Ignored; candidates of other networks have values.
        """
        return self.score(self.encode_distinct(table, positions))

    def encode_distinct(self, table: Tensor, positions: Tensor) -> Tensor:
        """Return the encoded rows of candidates, shape (candidates, steps, 256), see `score_distinct`."""
        used, places = torch.unique(positions, return_inverse=True)
        # index_select and not indexing: the gradient of indexing adds up in the order of the threads.
        encoded = self.encoder(table[used]).index_select(0, places.flatten())
        return torch.unflatten(encoded, 0, places.shape)

    def score(self, encoded: Tensor, head: nn.Module | None = None) -> Tensor:
        """Return the raw scores of encoded rows, shape (candidates, steps, 256); `head` replaces its head."""
        return self.step_scores(self.attention(encoded) + encoded, head).sum(-1)

    def step_scores(self, steps: Tensor, head: nn.Module | None = None) -> Tensor:
        """Return the contribution of each step to its candidate's score, from the steps after attention."""
        for block in self.residuals:
            steps = block(steps) + steps
        scores: Tensor = (self.head if head is None else head)(steps)
        return scores.squeeze(-1)

    def form(self, row_width: int, value_width: int) -> Form:
        """Return the form of a new network."""
        # One tensor each, because the exporter treats the same tensor as the same input.
        heads = [torch.zeros(ATTENTION_HEADS, 7, HIDDEN[-1] // ATTENTION_HEADS) for _ in range(3)]
        positions = torch.zeros((3, 6), dtype=torch.int64)
        places = {0: CANDIDATES, 1: PLACES}
        return Form(
            DistinctForm(PublishedNetwork(row_width)),
            DistinctForm.encodings,
            "counts",
            (torch.zeros(5, row_width), torch.zeros(7, HIDDEN[-1]), *heads, positions, torch.ones(3, 6)),
            ({0: NEW}, {0: KNOWN}, *({1: KNOWN},) * 3, places, dict(places)),
        )

    def compare(self, exported: OnnxNetwork, sample: Sample, rows: npt.NDArray[np.int64]) -> ScorePair:
        """Return raw scores of this network (from padded rows) and an exported one (from distinct rows)."""
        batch = sample.positions[rows]
        parts = np.array_split(batch, -(-len(batch) // 64))
        expected = np.concatenate([self(torch.from_numpy(sample.table[part])).numpy() for part in parts])
        # Padding is only at the end of a candidate, so its length is the place after its last row that is not
        # 0.
        lengths = batch.shape[1] - np.argmax(np.flip(batch != 0, axis=1), axis=1)
        lengths[~batch.any(axis=1)] = 0
        indices = np.concatenate([row[:length] for row, length in zip(batch, lengths, strict=True)])
        plan = RowPlan.of(indices.astype(np.int64) - 1, lengths.astype(np.int64), batch.shape[1])
        return expected, exported.score_all(sample.table, plan)


class MultiHeadNetwork(TrainableNetwork):
    """MTL-TLP: the published network with one trunk for all platforms and a head for each.

    Parameters
    ----------
    row_width : int
        Numbers per row.
    heads : int
        Number of platforms, which have one head each.
    """

    def __init__(self, row_width: int, heads: int) -> None:
        super().__init__()
        self.row_width = row_width
        self.trunk = PublishedNetwork(row_width)
        self.trunk.head = nn.Sequential()
        self.heads = nn.ModuleList(_head() for _ in range(heads))

    def score_distinct(self, table: Tensor, positions: Tensor, values: Tensor) -> Tensor:
        """Return the raw scores, each by the head of its platform.

        Parameters
        ----------
        table, positions : Tensor
            See `PublishedNetwork.score_distinct`.
        values : Tensor, shape (candidates, 1)
            Number of each candidate's platform.
        """
        of_head = values[:, 0].long()
        order = torch.argsort(of_head, stable=True)
        sizes = torch.bincount(of_head, minlength=len(self.heads)).tolist()
        scores = [
            self.trunk.score(self.trunk.encode_distinct(table, positions[own]), self.heads[number])
            for number, own in enumerate(torch.split(order, sizes))
            if len(own)
        ]
        return torch.cat(scores)[torch.argsort(order)]

    def alone(self, number: int) -> PublishedNetwork:
        """Return the network that combines copies of the trunk and of one head."""
        trunk, head = self.trunk.state_dict(), self.heads[number].state_dict()
        network = PublishedNetwork(self.row_width)
        network.load_state_dict(trunk | {f"head.{name}": weight for name, weight in head.items()})
        return network


class DistinctForm(nn.Module):
    """Computes the same scores as the network, without redundant work.

    Each distinct row is encoded and projected once, however many candidates contain it. The padding rows of a
    candidate are equal and are computed as one row with a multiplicity ``m``: in a softmax, ``m`` equal keys
    are equivalent to one whose logit is larger by ``log m``, and ``m`` equal steps add ``m`` times the score
    of one.

    One call either encodes rows and scores no candidates, or scores candidates from earlier encodings and
    encodes no rows.

    Parameters
    ----------
    network : PublishedNetwork
        The network whose weights it uses.
    """

    #: Names of the encodings of a row. In queries, keys and values, the dimension of the heads comes before
    #: that of the rows, so that gathering rows gives the operands of the attention without a transposition.
    encodings = ("steps", "queries", "keys", "values")

    def __init__(self, network: PublishedNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(
        self,
        rows: Tensor,
        steps: Tensor,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        positions: Tensor,
        counts: Tensor,
    ) -> tuple[Tensor, ...]:
        """Encode rows, and score candidates.

        Parameters
        ----------
        rows : Tensor, shape (new rows, row_width)
            Rows to encode.
        steps : Tensor, shape (known rows, 256)
            Encodings from which candidates are scored.
        queries, keys, values : Tensor, shape (8, known rows, 32)
            Projections of these encodings by head. Queries are scaled.
        positions : Tensor of int, shape (candidates, L)
            Known row at each place of each candidate.
        counts : Tensor, shape (candidates, L)
            Multiplicity of the row in the candidate: 1 for a primitive, the number of padding rows for the
            padding, and 0 for an unused place.

        Returns
        -------
        tuple of Tensor
            Encodings and projections of the new rows; then the raw scores, shape (candidates,).
        """
        network = self.network
        places = positions.flatten()
        # After the attention, tensors have two dimensions, with one row per place, so that runtimes can fuse
        # matrix products with bias and ReLU.
        query_at, key_at, value_at = (
            torch.unflatten(table.index_select(1, places), 1, positions.shape)
            for table in (queries, keys, values)
        )
        logits = query_at @ key_at.transpose(-1, -2) + torch.log(counts)[None, :, None, :]
        attended = torch.softmax(logits, dim=-1) @ value_at
        attended = attended.permute(1, 2, 0, 3).reshape(places.shape[0], HIDDEN[-1])
        attended = network.attention.project_out(attended) + steps.index_select(0, places)
        scores = torch.unflatten(network.step_scores(attended), 0, positions.shape)
        return *self._encode(rows), torch.sum(scores * counts, dim=1)

    def _encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the encodings of rows and their projections, see `forward`."""
        encoded = self.network.encoder(rows)
        split = torch.unflatten(self.network.attention.project_in(encoded), -1, (3, ATTENTION_HEADS, -1))
        query, key, value = split.permute(1, 2, 0, 3).unbind(0)
        return encoded, query * query.shape[-1] ** -0.5, key, value


def _head() -> nn.Sequential:
    return nn.Sequential(*_relu_chain(HIDDEN[-1], *HEAD), nn.Linear(HEAD[-1], 1))


def _relu_chain(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide_in, wide_out in pairwise(widths):
        layers += [nn.Linear(wide_in, wide_out), nn.ReLU()]
    return nn.Sequential(*layers)
