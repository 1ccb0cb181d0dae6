"""Schedule primitives: the steps of a candidate, independent of the tuner.

A dialect defines the kinds of primitives and their arguments, see `tlp_client.dialects`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from tlp_client.dialects.registry import find

#: An argument of a primitive as a hashable value; lists are tuples.
Argument: TypeAlias = "int | float | str | tuple[Argument, ...] | None"

#: Maximum primitives of a candidate. Public records of Ansor (1.7 million) have at most 76.
MAX_STEPS = 512
#: Maximum sizes of a candidate, see `Dialect.sizes_of`. Public records of Ansor have at most 69.
MAX_SIZES = 1024


class Primitive(NamedTuple):
    """One schedule step, hashable, with its arguments in record order.

    ``["SP", 2, 0, 256, [16, 4, 1], 1]`` becomes ``Primitive("SP", (2, 0, 256, (16, 4, 1), 1))``.
    """

    kind: str
    #: Each is an `Argument`; the dialect defines its type.
    args: tuple[Any, ...]

    def to_json(self) -> list[Any]:
        """Return the primitive as a list, as it is sent and stored."""
        return [self.kind, *_as_list(self.args)]


def read_primitive(step: object, dialect: str | None = None) -> Primitive:
    """Check one step of a candidate and return it typed.

    Parameters
    ----------
    step : object
        Step as a JSON parser returns it, e.g. ``["CI", 4]``.
    dialect : str or None
        Name of the dialect; None for the default one.

    Raises
    ------
    InvalidPrimitive
        If the step is not a list, its kind is unknown, or an argument is missing, superfluous, too long or of
        a wrong type.
    """
    return find(dialect).read_primitive(step)


def check_candidate(primitives: Sequence[Primitive], dialect: str | None = None) -> None:
    """Check the number of primitives and sizes of a candidate, which bound the work that it causes.

    Raises
    ------
    InvalidPrimitive
        If it has more primitives or sizes than its dialect allows.
    """
    find(dialect).check_candidate(primitives)


def too_many_steps(steps: int, max_steps: int = MAX_STEPS) -> str:
    """Return the error message for a candidate of `steps` primitives."""
    return f"{steps} primitives are more than the {max_steps} that a candidate may have"


def too_many_sizes(sizes: int, max_sizes: int = MAX_SIZES) -> str:
    """Return the error message for a candidate with `sizes` sizes."""
    return f"its splits have {sizes} sizes, which are more than the {max_sizes} that a candidate may have"


def _as_list(arguments: tuple[Argument, ...]) -> list[Any]:
    return [_as_list(argument) if isinstance(argument, tuple) else argument for argument in arguments]
