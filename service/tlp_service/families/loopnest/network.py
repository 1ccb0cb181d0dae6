"""The network of `loopnest`: residual blocks over the loop nest of a candidate and the row of its task.

The network is an ensemble of members. A candidate's raw score is the mean of the members' scores, an estimate
of the logarithm of its speed relative to the other candidates of its task. Members are computed side by side
with batched matrix products, so the engine runs one network.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tlp_service.families.loopnest.task import platform_column
from tlp_service.inference.network import OnnxNetwork
from tlp_service.training.form import CANDIDATES, KNOWN, NEW, Form, Sample
from tlp_service.training.network import ExportableNetwork, ScorePair

#: Maximum number of pieces per feature.
PIECES = 8
#: Number of candidates from which quantiles are computed, up to twice as many.
_CUT_CANDIDATES = 20_000


class Pieces(nn.Module):
    """Piecewise linear encoding of features.

    Each piece is one input. It rises linearly from -1 to 1 across the piece and is constant outside. With
    this encoding, a network can easily treat a size unlike its neighbours, and it never extrapolates, like
    decision trees. Source: the piecewise linear encoding of Gorishniy et al. 2022 (arXiv 2203.05556), with
    the cuts at quantiles.

    Parameters
    ----------
    count : int
        Total number of pieces.
    """

    columns: Tensor
    middle: Tensor
    reach: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("columns", torch.zeros(count, dtype=torch.int64))
        self.register_buffer("middle", torch.zeros(count))
        self.register_buffer("reach", torch.ones(count))

    @classmethod
    def cutting(cls, values: Tensor) -> Pieces:
        """Return the pieces of each column of values, shape (n, columns).

        A column with few distinct values is cut at each of them, and other columns at quantiles. A column
        that is mostly constant has few pieces, and a constant column has none.
        """
        step = max(1, len(values) // _CUT_CANDIDATES)
        quantiles = torch.linspace(0, 1, PIECES + 1)
        found: list[tuple[int, Tensor]] = []
        for column, numbers in enumerate(values.T):
            cuts = torch.unique(numbers)
            if len(cuts) > PIECES + 1:
                cuts = torch.unique(torch.quantile(numbers[::step], quantiles, interpolation="nearest"))
            found += [(column, cut) for cut in cuts.unfold(0, 2, 1)] if len(cuts) > 1 else []
        pieces = cls(len(found))
        ends = torch.stack([cut for _, cut in found]) if found else torch.zeros(0, 2)
        pieces.columns = torch.tensor([column for column, _ in found], dtype=torch.int64)
        pieces.middle, pieces.reach = ends.mean(1), (ends[:, 1] - ends[:, 0]) / 2
        return pieces

    def __len__(self) -> int:
        return len(self.columns)

    def forward(self, values: Tensor) -> Tensor:
        """Map (n, columns) to (n, pieces)."""
        return ((values.index_select(1, self.columns) - self.middle) / self.reach).clamp(-1.0, 1.0)


class Members(nn.Module):
    """A linear layer per member, computed side by side.

    Parameters
    ----------
    members, wide_in, wide_out : int
        Shape of the weights.
    """

    def __init__(self, members: int, wide_in: int, wide_out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(wide_in)  # the same initialization as in torch.nn.Linear
        self.weight = nn.Parameter(torch.empty(members, wide_in, wide_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, wide_out).uniform_(-bound, bound))

    def forward(self, values: Tensor) -> Tensor:
        """Map (members, n, wide_in) to (members, n, wide_out); (1, n, wide_in) is shared by all members."""
        out: Tensor = values @ self.weight + self.bias
        return out


class Block(nn.Module):
    """A residual block behind a normalisation (pre-norm)."""

    def __init__(self, members: int, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = Norm(members, width)
        self.expand = Members(members, width, 2 * width)
        self.shrink = Members(members, 2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        """Map (members, n, width) to the same shape."""
        inner = nn.functional.gelu(self.expand(self.norm(values)), approximate="tanh")
        out: Tensor = values + self.shrink(self.dropout(inner))
        return out


class Norm(nn.Module):
    """Layer normalization with a scale and shift per member."""

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(members, 1, width))
        self.shift = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, values: Tensor) -> Tensor:
        """Map (members, n, width) to the same shape."""
        normed = nn.functional.layer_norm(values, values.shape[-1:])
        return normed * self.scale + self.shift


class LoopNestNetwork(ExportableNetwork):
    """Scores candidates from their nests and tasks' rows.

    Parameters
    ----------
    task_width : int
        Number of features of a task, see `tlp_service.families.loopnest.task`.
    pieces : Pieces or int
        Encoding of a candidate's features, or only its number of pieces if it is loaded with the weights.
    width, blocks, members : int
        Width, number of residual blocks and number of members of the network.
    task_hidden : int
        Width of the layer between a task's row and the network. There are few tasks, so a large width
        overfits.
    dropout : float
        Dropout rate during training.
    """

    def __init__(
        self,
        task_width: int,
        pieces: Pieces | int,
        width: int,
        blocks: int,
        members: int,
        task_hidden: int,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.pieces = Pieces(pieces) if isinstance(pieces, int) else pieces
        self.task_in = Members(members, task_width, task_hidden)
        self.task_out = Members(members, task_hidden, width)
        self.nest_in = Members(members, len(self.pieces), width)
        self.blocks = nn.ModuleList(Block(members, width, dropout) for _ in range(blocks))
        self.norm = Norm(members, width)
        self.head = Members(members, width, 1)
        self.dropout = nn.Dropout(dropout)
        self.platforms_from = platform_column(0)
        self.architecture = {
            "pieces": len(self.pieces),
            "width": width,
            "blocks": blocks,
            "members": members,
            "task_hidden": task_hidden,
        }

    def tasks(self, rows: Tensor) -> Tensor:
        """Return the contribution of tasks to their candidates, shape (members, n, width).

        `rows` are the rows of the tasks, shape (n, task_width).
        """
        hidden = nn.functional.gelu(self.task_in(rows[None]), approximate="tanh")
        out: Tensor = self.task_out(self.dropout(hidden))
        return out

    def member_scores(self, table: Tensor, positions: Tensor, values: Tensor) -> Tensor:
        """Return the raw scores of each member, shape (members, candidates); see `score_distinct`."""
        return self.score(self.tasks(table).index_select(1, positions[:, 0]), values)

    def score_distinct(self, table: Tensor, positions: Tensor, values: Tensor) -> Tensor:
        """Return the raw score of each candidate, higher is faster.

        Parameters
        ----------
        table : Tensor, shape (tasks, task_width)
            Rows of tasks.
        positions : Tensor of int, shape (candidates, 1)
            Row of each candidate's task in the table.
        values : Tensor, shape (candidates, W)
            Nests of the candidates.
        """
        used, places = torch.unique(positions[:, 0], return_inverse=True)
        return self.member_scores(table[used], places[:, None], values).mean(0)

    def score(self, tasks: Tensor, nests: Tensor) -> Tensor:
        """Return the raw scores of each member from the contribution of each candidate's task."""
        values = self.dropout(self.nest_in(self.pieces(nests)[None])) + tasks
        for block in self.blocks:
            values = block(values)
        out: Tensor = self.head(self.norm(values)).squeeze(-1)
        return out

    def form(self, row_width: int, value_width: int) -> Form:
        """Return the form of a new network of the same sizes."""
        network = LoopNestNetwork(row_width, **self.architecture)
        tasks = torch.zeros(self.architecture["members"], 7, self.architecture["width"])
        positions = torch.zeros((3, 1), dtype=torch.int64)
        return Form(
            LoopNestForm(network),
            LoopNestForm.encodings,
            "nests",
            (torch.zeros(5, row_width), tasks, positions, torch.ones(3, value_width)),
            ({0: NEW}, {1: KNOWN}, {0: CANDIDATES}, {0: CANDIDATES}),
        )

    def compare(self, exported: OnnxNetwork, sample: Sample, rows: npt.NDArray[np.int64]) -> ScorePair:
        """Return the raw scores of this network and of an exported one for some candidates of a sample."""
        positions, nests = sample.positions[rows].astype(np.int64), sample.values[rows].astype(np.float32)
        of_torch = self.score_distinct(
            torch.from_numpy(sample.table), torch.from_numpy(positions), torch.from_numpy(nests)
        )
        return of_torch.numpy(), exported.score(exported.encode(sample.table), positions, nests)


class LoopNestForm(nn.Module):
    """The exported form of the network (see `tlp_service.training.form.Form`), which encodes each task once.

    Parameters
    ----------
    network : LoopNestNetwork
        The network whose weights it uses.
    """

    encodings = ("tasks",)

    def __init__(self, network: LoopNestNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, rows: Tensor, tasks: Tensor, positions: Tensor, nests: Tensor) -> tuple[Tensor, Tensor]:
        """Encode tasks, and score candidates.

        Parameters
        ----------
        rows : Tensor, shape (new tasks, task_width)
            Rows to encode.
        tasks : Tensor, shape (members, known tasks, width)
            Encodings from which candidates are scored.
        positions : Tensor of int, shape (candidates, 1)
            Known task of each candidate.
        nests : Tensor, shape (candidates, nest_width)
            Numbers of each candidate.

        Returns
        -------
        tasks : Tensor, shape (members, new tasks, width)
        raw : Tensor, shape (candidates,)
        """
        network = self.network
        scores = network.score(tasks.index_select(1, positions[:, 0]), nests)
        return network.tasks(rows), scores.mean(0)
