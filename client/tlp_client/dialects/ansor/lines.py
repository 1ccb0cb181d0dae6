"""Fast parsing of Ansor's record lines, with a cache of tasks and primitives.

Logs repeat themselves: the records of a file share their task, and 2,048 candidates of one search have about
360 distinct primitives. A line is therefore split at the fixed text between primitives, and each piece is
looked up in a cache. A piece is accepted only if it parses as a primitive by itself, so the split is exact:
if every piece between the separators is a JSON list, the whole is the list of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from sys import getsizeof

from tlp_client.bounded import memory_of
from tlp_client.dialects.ansor.records import read_result
from tlp_client.dialects.ansor.tasks import read_task
from tlp_client.dialects.dialect import Dialect
from tlp_client.errors import InvalidRecord
from tlp_client.primitives import Primitive
from tlp_client.records import Record, RecordParser
from tlp_client.tasks import Task

_STEPS_BEGIN = '], [[], [["'
_STEPS_END = ']]]], "r": '
_STEP_SEPARATOR = '], ["'
_NO_STEPS = '], [[], []]], "r": '

#: Parses the JSON value at the start of a text and returns it with its end. Faster than `json.loads`.
_decode = json.JSONDecoder().raw_decode


def parse_line(dialect: Dialect, line: str, parser: RecordParser) -> Record:
    """Return the record of a line, see `Dialect.parse_line`.

    A line that TVM did not lay out is parsed as a whole.
    """
    begin, end = line.find(_STEPS_BEGIN), line.rfind(_STEPS_END)
    if not 0 <= begin <= end:
        return Dialect.parse_line(dialect, line, parser)
    pieces = line[begin + len(_STEPS_BEGIN) : end].split(_STEP_SEPARATOR)
    try:
        task = parser.tasks.get(line[:begin]) or _read_head(line[:begin], parser)
        try:
            primitives = tuple(map(parser.primitives.__getitem__, pieces))
        except KeyError:
            primitives = tuple([_read_piece(piece, parser, dialect) for piece in pieces])
        tail = '{"r": ' + line[end + len(_STEPS_END) :]
        document, length = _decode(tail)
    except (ValueError, RecursionError):
        return Dialect.parse_line(dialect, line, parser)  # it reports the reason
    if length != len(tail):
        return Dialect.parse_line(dialect, line, parser)
    dialect.check_candidate(primitives)
    return read_result(task, primitives, document)


def split_primitives(candidates: Iterable[str]) -> tuple[list[str], list[list[int]]]:
    """Return the distinct primitives of TVM's lines as JSON text, and each line as indices into them.

    For speed, the lines are split but not parsed: a search requests the scores of 2,048 lines at a time.

    Raises
    ------
    InvalidRecord
        If a line does not have TVM's layout.
    """
    known: dict[str, int] = {}
    found: list[list[int]] = []
    for line in candidates:
        begin, end = line.find(_STEPS_BEGIN), line.rfind(_STEPS_END)
        if not 0 <= begin < end:
            if _NO_STEPS not in line:
                raise InvalidRecord("the line is not laid out as TVM writes it")
            found.append([])
            continue
        pieces = line[begin + len(_STEPS_BEGIN) : end].split(_STEP_SEPARATOR)
        try:
            found.append(list(map(known.__getitem__, pieces)))
        except KeyError:
            found.append([known.setdefault(piece, len(known)) for piece in pieces])
    return ['["' + piece + "]" for piece in known], found


def _read_head(head: str, parser: RecordParser) -> Task:
    opened = json.loads(head + "]]}")
    if not isinstance(opened, dict) or list(opened) != ["i"] or len(opened["i"]) != 1:
        raise InvalidRecord("the line does not begin with the task")
    task = read_task(opened["i"][0])
    nbytes = task.nbytes
    parser.made_bytes += nbytes
    return parser.tasks.add(head, task, getsizeof(head) + nbytes)


def _read_piece(piece: str, parser: RecordParser, dialect: Dialect) -> Primitive:
    known = parser.primitives.get(piece)
    if known is None:
        known = dialect.read_primitive(json.loads('["' + piece + "]"))
        nbytes = memory_of(known)
        parser.made_bytes += nbytes
        parser.primitives.add(piece, known, getsizeof(piece) + nbytes)
    return known
