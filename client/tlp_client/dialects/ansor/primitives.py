"""The 14 kinds of transform step of Ansor, and their arguments.

Source of the argument lists: ``WriteToRecord`` of each step in TVM 0.19's
``src/auto_scheduler/transform_step.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tlp_client.errors import InvalidPrimitive, is_text, shown
from tlp_client.primitives import Argument, Primitive

INT, INTS, TEXT = "an integer", "a list of integers", "a string"

#: Name and type of the arguments of each kind, in record order.
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

#: Maximum entries of a list argument. Public records have at most 34, in the loop order of a GPU stage.
MAX_ENTRIES = 256
#: Maximum lengths of a split, and maximum sources of a fused follow split. Public records have at most 4 of
#: each.
MAX_LENGTHS = MAX_SOURCES = 16
#: Maximum characters of a pragma or a memory scope. Public records have at most 25.
MAX_TEXT = 256
#: Number of sizes of a follow split: the features distinguish this many.
_SIZES_OF_FOLLOWER = 5
#: Maximum sizes of one primitive.
MAX_SIZES_OF_STEP = 1 + MAX_LENGTHS
#: Maximum entries of the list arguments that have a smaller bound than `MAX_ENTRIES`.
_MAX_ENTRIES_OF = {"lengths": MAX_LENGTHS, "source steps": MAX_SOURCES}


def read_arguments(kind: str, args: Sequence[Any]) -> tuple[Argument, ...]:
    """Check the arguments of a step of a known kind and return them typed.

    Raises
    ------
    InvalidPrimitive
        If one is missing, superfluous, too long or of a wrong type.
    """
    expected = ARGUMENTS[kind]
    if len(args) != len(expected):
        raise InvalidPrimitive(f"{kind} takes {len(expected)} arguments, not {len(args)}")
    return tuple([_read_argument(kind, e, a) for e, a in zip(expected, args, strict=True)])


def sizes_of(primitive: Primitive) -> int:
    """Return the maximum number of loop sizes that a primitive adds; 0 if it is not a split.

    A split has one size per length and one for the rest. A follow split has the sizes of its source. A fused
    follow split has one size of each source.
    """
    if primitive.kind == "SP":
        return 1 + len(primitive.args[3])
    if primitive.kind == "FSP":
        return _SIZES_OF_FOLLOWER
    return len(primitive.args[2]) if primitive.kind == "FFSP" else 0


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
