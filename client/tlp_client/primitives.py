"""Schedule primitives as Ansor serializes them: the 14 kinds of transform step.

Source of the argument lists: ``WriteToRecord`` of each step in TVM 0.19's
``src/auto_scheduler/transform_step.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tlp_client.errors import InvalidPrimitive, is_text, shown

Argument = int | str | tuple[int, ...]

INT, INTS, TEXT = "an integer", "a list of integers", "a string"

#: kind -> (argument name, argument type) in record order
ARGUMENTS: dict[str, tuple[tuple[str, str], ...]] = {
    "AN": (("stage", INT), ("iterator", INT), ("annotation", INT)),
    "FU": (("stage", INT), ("fused iterators", INTS)),
    "PR": (("stage", INT), ("iterator", INT), ("pragma", TEXT)),
    "RE": (("stage", INT), ("order", INTS)),
    "SP": (("stage", INT), ("iterator", INT), ("extent", INT), ("lengths", INTS), ("inner to outer", INT)),
    "FSP": (("stage", INT), ("iterator", INT), ("source step", INT), ("parts", INT)),
    "FFSP": (
        ("stage", INT),
        ("iterator", INT),
        ("source steps", INTS),
        ("level", INT),
        ("factor or nparts", INT),
    ),
    "SA": (("stage", INT), ("iterator", INT), ("factor", INT), ("offset", INT)),
    "CA": (("stage", INT), ("target stage", INT), ("target iterator", INT)),
    "CI": (("stage", INT),),
    "CR": (("stage", INT),),
    "CHR": (("stage", INT), ("scope", TEXT), ("reader stages", INTS)),
    "CHW": (("stage", INT), ("scope", TEXT)),
    "RF": (("stage", INT), ("iterator", INT), ("factor iterator", INT)),
}

# TVM reads them into C++ ints.
INT_MIN, INT_MAX = -(2**31), 2**31 - 1

#: Maximum primitives of a candidate. Public records (1.7 million) have at most 76.
MAX_STEPS = 512
#: Maximum entries of a list argument. Public records have at most 34, in the loop order of a GPU stage.
MAX_ENTRIES = 256
#: Maximum lengths of a split, and maximum sources of a fused follow split. Public records have at most 4 of both.
MAX_LENGTHS = MAX_SOURCES = 16
#: Maximum characters of a pragma or a memory scope. Public records have at most 25.
MAX_TEXT = 256
#: Maximum sizes of a candidate, see `sizes_of`. Public records have at most 69.
MAX_SIZES = 1024
#: Sizes of a follow split: as many as the features distinguish.
_SIZES_OF_FOLLOWER = 5
#: Maximum sizes of one primitive.
MAX_SIZES_OF_STEP = 1 + MAX_LENGTHS
#: Name of a list argument -> its maximum entries; the others may have `MAX_ENTRIES`.
_MAX_ENTRIES_OF = {"lengths": MAX_LENGTHS, "source steps": MAX_SOURCES}


class Primitive(NamedTuple):
    """One schedule step, hashable, with its arguments in record order.

    ``["SP", 2, 0, 256, [16, 4, 1], 1]`` becomes ``Primitive("SP", (2, 0, 256, (16, 4, 1), 1))``.
    """

    kind: str
    args: tuple[Argument, ...]

    def to_json(self) -> list[Any]:
        """Return the primitive as it stands in a record."""
        return [self.kind, *(list(arg) if isinstance(arg, tuple) else arg for arg in self.args)]


def read_primitive(step: object) -> Primitive:
    """Check one step of a record and return it typed.

    Parameters
    ----------
    step : object
        What a JSON parser made of the step, e.g. ``["CI", 4]``.

    Raises
    ------
    InvalidPrimitive
        If the step is not a list, its kind is unknown, or an argument is missing, superfluous, too long or of a wrong type.
    """
    if not isinstance(step, Sequence) or isinstance(step, (str, bytes)) or not step:
        raise InvalidPrimitive(f"a primitive is a list [kind, arguments…], not {shown(step)}")
    kind, args = step[0], step[1:]
    if not isinstance(kind, str):
        raise InvalidPrimitive(f"a primitive begins with its kind, not with {shown(kind)}")
    expected = ARGUMENTS.get(kind)
    if expected is None:
        raise InvalidPrimitive(f"unknown primitive kind {shown(kind)}; known: {' '.join(ARGUMENTS)}")
    if len(args) != len(expected):
        raise InvalidPrimitive(f"{kind} takes {len(expected)} arguments, not {len(args)}")
    return Primitive(kind, tuple(_read_argument(kind, e, a) for e, a in zip(expected, args, strict=True)))


def sizes_of(primitive: Primitive) -> int:
    """Return the maximum number of sizes that a primitive adds to the loops of its stage; 0 if it is not a split.

    A split has one size per length and one for the rest. A follow split has the sizes of its source, and a fused follow split has one
    size of each source.
    """
    if primitive.kind == "SP":
        return 1 + len(primitive.args[3])  # type: ignore[arg-type]  # `read_primitive` checks it
    if primitive.kind == "FSP":
        return _SIZES_OF_FOLLOWER
    return len(primitive.args[2]) if primitive.kind == "FFSP" else 0  # type: ignore[arg-type]  # as above


def check_candidate(primitives: Sequence[Primitive]) -> None:
    """Check the number of primitives and sizes of a candidate, which bound the work that it causes.

    Raises
    ------
    InvalidPrimitive
        If it has more than `MAX_STEPS` primitives or `MAX_SIZES` sizes.
    """
    if len(primitives) > MAX_STEPS:
        raise InvalidPrimitive(too_many_steps(len(primitives)))
    # Nearly all candidates are so short that counting their sizes is not needed.
    if len(primitives) * MAX_SIZES_OF_STEP > MAX_SIZES:
        sizes = sum(map(sizes_of, primitives))
        if sizes > MAX_SIZES:
            raise InvalidPrimitive(too_many_sizes(sizes))


def too_many_steps(steps: int) -> str:
    """Return the error message for a candidate of `steps` primitives."""
    return f"{steps} primitives are more than the {MAX_STEPS} that a candidate may have"


def too_many_sizes(sizes: int) -> str:
    """Return the error message for a candidate with `sizes` sizes."""
    return f"its splits have {sizes} sizes, which are more than the {MAX_SIZES} that a candidate may have"


def is_int32(value: object) -> bool:
    """Return whether a parsed value is an integer that TVM can read."""
    # type() and not isinstance(): True is an int to isinstance().
    return type(value) is int and INT_MIN <= value <= INT_MAX


def _read_argument(kind: str, expected: tuple[str, str], arg: Any) -> Argument:
    name, type_ = expected
    if type_ is INT and is_int32(arg):
        return int(arg)
    if type_ is TEXT and is_text(arg):
        _check_length(kind, name, len(arg), MAX_TEXT, "characters")
        return str(arg)
    if type_ is INTS and type(arg) in (list, tuple):
        _check_length(kind, name, len(arg), _MAX_ENTRIES_OF.get(name, MAX_ENTRIES), "entries")
        if all(map(is_int32, arg)):
            return tuple(arg)
    raise InvalidPrimitive(f"argument '{name}' of {kind} is {type_} in 32 bits, not {shown(arg)}")


def _check_length(kind: str, name: str, length: int, limit: int, unit: str) -> None:
    if length > limit:
        raise InvalidPrimitive(f"argument '{name}' of {kind}: expected at most {limit} {unit}, got {length}")
