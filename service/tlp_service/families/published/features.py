"""The features of the published TLP model: one row per primitive.

Source: TLP (arXiv 2211.03578, section 4.2) and its public code. A row is the one-hot encoding of the step
kind, followed by the step's arguments in record order. Lists are flattened, strings are replaced by codes,
and the row is cropped or padded with zeros. The order of kinds and the codes come from the public code and
differ between CPU and GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tlp_client.errors import InvalidPrimitive, shown
from tlp_client.primitives import Primitive
from tlp_client.tasks import PlatformKind
from tlp_service.scheduling.steps import Steps, finished

#: Primitives per step, and units of work per primitive.
_STEP_PRIMITIVES, _PRIMITIVE_COST = 1024, 150

_SCOPES = {"local": 1, "shared": 2, "global": 3}


@dataclass(frozen=True, slots=True)
class PublishedFeatures:
    """Vocabulary and shape of the published rows of one platform kind.

    Parameters
    ----------
    platform_kind : {"cpu", "gpu"}
        Platform kind of the published vocabulary.
    steps : int
        Rows per candidate. Longer candidates are cropped, and shorter ones padded with zero rows.
    width : int
        Numbers per row.
    kinds : tuple of str
        Step kinds in one-hot order.
    unroll_codes : dict
        ``auto_unroll_max_step`` value -> code.
    """

    platform_kind: PlatformKind
    steps: int
    width: int
    kinds: tuple[str, ...]
    unroll_codes: dict[int, int]

    def row(self, primitive: Primitive) -> list[float]:
        """Return the row of one primitive, `width` numbers.

        Raises
        ------
        InvalidPrimitive
            If the vocabulary has no code for the kind, pragma or scope. Without this error the
            row would be silently shifted.
        """
        if primitive.kind not in self.kinds:
            raise InvalidPrimitive(
                f"the published {self.platform_kind} vocabulary has no primitive kind '{primitive.kind}'; "
                f"it has {' '.join(self.kinds)}"
            )
        row = [0.0] * len(self.kinds)
        row[self.kinds.index(primitive.kind)] = 1.0
        for argument in primitive.args:
            if isinstance(argument, tuple):
                row.extend(map(float, argument))
            elif isinstance(argument, str):
                row.append(float(self._code(primitive.kind, argument)))
            else:
                row.append(float(argument))
        return (row + [0.0] * self.width)[: self.width]

    def rows(
        self, primitives: Sequence[Primitive]
    ) -> tuple[npt.NDArray[np.float32], dict[int, InvalidPrimitive]]:
        """Return the rows of distinct primitives and the errors of those that have none.

        Returns
        -------
        rows : ndarray of float32, shape (1 + len(primitives), width)
            Row 0 is the padding, all zeros; row ``1 + i`` belongs to primitive ``i``.
        errors : dict
            Error of each primitive that has no row, by position. Its row is zeros.
        """
        return finished(self.rows_in_steps(primitives))

    def rows_in_steps(
        self, primitives: Sequence[Primitive]
    ) -> Steps[tuple[npt.NDArray[np.float32], dict[int, InvalidPrimitive]]]:
        """Compute the result of `rows`, in steps of bounded time."""
        rows = np.zeros((1 + len(primitives), self.width), dtype=np.float32)
        errors: dict[int, InvalidPrimitive] = {}
        for begin in range(0, len(primitives), _STEP_PRIMITIVES):
            some = primitives[begin : begin + _STEP_PRIMITIVES]
            yield len(some) * _PRIMITIVE_COST
            for position, primitive in enumerate(some, start=begin):
                try:
                    rows[1 + position] = self.row(primitive)
                except InvalidPrimitive as error:
                    errors[position] = error
        return rows, errors

    def positions(
        self, indices: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return the index into `rows` for each step of each candidate.

        Parameters
        ----------
        indices : ndarray of int, shape (sum of lengths,)
            Primitive indices of all candidates, one candidate after the other.
        lengths : ndarray of int, shape (candidates,)
            Primitives of each candidate.

        Returns
        -------
        ndarray of int, shape (candidates, steps)
            Row indices; 0, the padding, after the end of a candidate.
        """
        step = np.arange(self.steps)
        starts = np.cumsum(lengths) - lengths
        is_real = step < lengths[:, None]
        positions = np.zeros((len(lengths), self.steps), dtype=np.int64)
        positions[is_real] = 1 + indices[(starts[:, None] + step)[is_real]]
        return positions

    def _code(self, kind: str, text: str) -> int:
        if kind == "PR":
            name, _, value = text.partition("$")
            if (
                name == "auto_unroll_max_step"
                and len(value) < 9
                and value.isdecimal()
                and int(value) in self.unroll_codes
            ):
                return self.unroll_codes[int(value)]
        elif kind == "CHW" and text in _SCOPES:
            return _SCOPES[text]
        elif kind == "CHR" and text == "shared":
            return 1
        raise InvalidPrimitive(
            f"the published {self.platform_kind} vocabulary has no code for {kind} {shown(text)}"
        )


PUBLISHED: dict[PlatformKind, PublishedFeatures] = {
    "cpu": PublishedFeatures(
        platform_kind="cpu",
        steps=25,
        width=22,
        kinds=("CI", "RE", "AN", "RF", "CHW", "SP", "CR", "CA", "FU", "FSP", "PR"),
        unroll_codes={16: 1, 0: 2, 512: 3, 64: 4},
    ),
    "gpu": PublishedFeatures(
        platform_kind="gpu",
        steps=40,
        width=20,
        kinds=("AN", "CHR", "CHW", "CI", "CA", "FFSP", "SP", "FU", "RE", "PR", "FSP"),
        unroll_codes={0: 1, 16: 2, 64: 3, 1024: 4, 512: 5},
    ),
}
