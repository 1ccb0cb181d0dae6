"""Damages bytes and JSON trees at random, reproducibly by seed."""

import copy
import json
from typing import Any

#: Values that readers may misinterpret, or that are just out of range.
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, 1e-320, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63, 2**64,
    10**400,
    "", " ", "a", "\x00", "é", "\ud800", "\U0001f600", "a" * 5000, "9" * 400, "NaN", "-keys=cuda", "[" * 2000, "../..",
    "a/b", "\n",
    [], {}, [[]], [None], [[[]]], [0] * 300, {"a": 1}, ["CI"], ["SP", 0, 0, 0, [], 1], ["??", 1], float("nan"),
    float("inf"),
]  # fmt: skip

#: The same for bytes.
PIECES = [
    b"NaN",
    b"-1",
    b"1e999",
    b"9" * 400,
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"\\u0000",
    b"\\ud800",
    b"\xff",
    b"\xed\xa0\x80",
    b"2e9",
    b"true",
    b"18446744073709551616",
    b"-0.0",
    b"\xef\xbb\xbf",
    b"\n",
    b"\r\n\n",
    b"\x1f\x8b",
    b"#",
    b"[" * 3000,
]


def damaged_bytes(chance, whole):
    """Return bytes of which some are changed, removed, duplicated, inserted or cut off."""
    found = bytearray(whole)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at, length = chance.randrange(len(found) + 1), chance.choice([1, 1, 2, 4, 16, 64])
        match chance.randrange(6):
            case 0:
                found[at : at + length] = chance.randbytes(length)
            case 1:
                del found[at : at + length]
            case 2:
                found[at:at] = found[at : at + length]
            case 3:
                found[at:at] = chance.choice(PIECES)
            case 4:
                found[at : at + 1] = bytes([chance.choice(b'[]{}",:0-. ')])
            case _:
                del found[at:]
    return bytes(found)


def damaged_tree(chance, document):
    """Return a copy of a JSON tree in which some nodes are replaced, removed, duplicated or swapped."""
    tree = copy.deepcopy(document)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        nodes = list(_places(tree))
        if not nodes:
            return chance.choice(ODD)
        parent, key = chance.choice(nodes)
        match chance.randrange(6):
            case 0 | 1 | 2:
                parent[key] = copy.deepcopy(chance.choice(ODD))
            case 3:
                del parent[key]
            case 4 if isinstance(parent, list):
                parent.insert(chance.randrange(len(parent) + 1), copy.deepcopy(parent[key]))
            case 4:
                parent[str(key) + chance.choice(["", "x", "é"])] = copy.deepcopy(parent[key])
            case _:
                other_parent, other = chance.choice(nodes)
                parent[key] = copy.deepcopy(other_parent[other]) if _has(other_parent, other) else 0
    return tree


def damaged_json(chance, whole):
    """Return the bytes of a JSON document, damaged as a tree or as bytes."""
    if chance.random() < 0.4:
        return damaged_bytes(chance, whole)
    return json.dumps(damaged_tree(chance, json.loads(whole))).encode(errors="surrogatepass")


def _places(tree, depth=0):
    """Yield ``(parent, key)`` of all nodes, but of only some elements of long lists."""
    if isinstance(tree, dict):
        keys = list(tree)
    elif isinstance(tree, list):
        keys = list(range(len(tree))) if len(tree) < 60 else [*range(0, len(tree), len(tree) // 50)]
    else:
        return
    for key in keys:
        yield tree, key
        if depth < 9:
            yield from _places(tree[key], depth + 1)


def _has(parent, key):
    return key in parent if isinstance(parent, dict) else key < len(parent)
