"""Checks that an ONNX file contains all its tensors.

A tensor may be stored in another file, which the digest in the manifest would not cover. Servers do not
install the ``onnx`` package, so this module reads the few relevant fields itself, by their numbers in
``onnx.proto``.
"""

from __future__ import annotations

import os
from typing import BinaryIO

from tlp_service.errors import BadVersion

#: Message -> field number -> type of the message in that field, for every path from a model to a tensor.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}

#: Numbers of the fields ``external_data`` and ``data_location`` of a tensor. A location other than 0 is external.
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14

#: Maximum nesting of messages, which is the limit of protobuf itself.
_MAX_DEPTH = 100

#: Wire type of protobuf -> its fixed size in bytes; and the two wire types of variable size.
_FIXED_SIZES = {1: 8, 5: 4}
_VARINT, _LENGTH_DELIMITED = 0, 2


def check_complete(file: BinaryIO, name: str) -> None:
    """Check that an ONNX file holds all its tensors.

    Parameters
    ----------
    file : binary file
        Read from the beginning; the data of tensors is skipped.
    name : str
        Name of the file, for the error.

    Raises
    ------
    BadVersion
        If it refers to another file, or is not an ONNX file.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    try:
        _Scan(file, name).message("model", size, 0)
    except _NotOnnx as error:
        raise BadVersion(f"{name}: expected an ONNX file; {error}") from None


class _NotOnnx(Exception):
    """The bytes are not a protobuf message of the expected type."""


class _Scan:
    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._place = 0

    def message(self, kind: str, end: int, depth: int) -> None:
        """Read one message, which ends at byte `end`."""
        if depth > _MAX_DEPTH:
            raise _NotOnnx(f"its messages are nested deeper than {_MAX_DEPTH}")
        held = _FIELDS[kind]
        while self._place < end:
            number, wire_type = divmod(self._varint(), 8)
            if wire_type == _VARINT:
                value = self._varint()
                if kind == "tensor" and number == _DATA_LOCATION and value != 0:
                    self._refuse()
            elif wire_type == _LENGTH_DELIMITED:
                length = self._varint()
                if kind == "tensor" and number == _EXTERNAL_DATA:
                    self._refuse()
                if self._place + length > end:
                    raise _NotOnnx(f"a field reaches beyond its message at byte {self._place}")
                if number in held:
                    self.message(held[number], self._place + length, depth + 1)
                else:
                    self._skip(length)
            elif wire_type in _FIXED_SIZES:
                self._skip(_FIXED_SIZES[wire_type])
            else:
                raise _NotOnnx(f"wire type {wire_type} at byte {self._place}")
        if self._place != end:
            raise _NotOnnx(f"a message ends in the middle of a field at byte {end}")

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._file.read(1)
            if not byte:
                raise _NotOnnx("it is truncated")
            self._place += 1
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return value
        raise _NotOnnx(f"a number of more than 64 bits at byte {self._place}")

    def _skip(self, length: int) -> None:
        self._place += length
        self._file.seek(self._place)

    def _refuse(self) -> None:
        raise BadVersion(
            f"{self._name}: expected all tensors inside the file; one is external data, which no digest covers; "
            "export it with external_data=False"
        )
