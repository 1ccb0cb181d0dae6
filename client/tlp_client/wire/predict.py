"""Predict requests and their answers."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from tlp_client.dialects.dialect import Dialect
from tlp_client.dialects.registry import DEFAULT, find, read_dialect, stated_name
from tlp_client.errors import BadAnswer, InvalidPrimitive, InvalidRequest, is_text, shown
from tlp_client.primitives import Primitive, too_many_sizes, too_many_steps
from tlp_client.tasks import MAX_TARGET, MAX_WORKLOAD_KEY, Task
from tlp_client.wire.fields import (
    FORMAT,
    decode_answer,
    is_name,
    read_errors,
    read_head,
    read_name,
    read_object,
    read_on_invalid,
    read_text,
)

#: Maximum score: the largest 32-bit float, because tuners store scores in 32 bits.
_MAX_SCORE = 3.4028234663852886e38


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest(ABC):
    """Something to be scored: a tagged union, whose tag is the class. A model family reads one or more of its kinds.

    Parameters
    ----------
    target : str
        Target of the task, as TVM writes it.
    platform : str or None
        Name of the target hardware. With None, the service infers it from the target.
    version : str or None
        Model version to score with; None for the active one.
    report_invalid : bool
        Whether an invalid candidate gets an error of its own instead of refusing the request.
    errors : dict
        Position of an invalid candidate -> what is wrong with it.
    validity : bool
        Whether the answer shall tell how likely each candidate is to build and run.
    dialect : str
        Name of the dialect in which the candidates are written.
    """

    target: str
    platform: str | None
    version: str | None
    report_invalid: bool
    errors: dict[int, str] = field(default_factory=dict)
    validity: bool = False
    dialect: str = DEFAULT

    @property
    @abstractmethod
    def candidates(self) -> int:
        """Number of candidates, invalid ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest(ScoreRequest):
    """Candidates of one task as sequences of primitives.

    Parameters
    ----------
    workload_key : str
        Workload of the task, as the tuner writes it.
    primitives : list of Primitive
        The distinct primitives.
    indices : ndarray of int64, shape (sum of lengths,)
        Primitives of all candidates, one candidate after the other.
    lengths : ndarray of int64, shape (candidates,)
        Primitives of each candidate; 0 for an invalid one.
    """

    workload_key: str
    primitives: list[Primitive]
    indices: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @property
    def candidates(self) -> int:
        """Number of candidates, invalid ones included."""
        return len(self.lengths)


@dataclass(frozen=True, slots=True)
class PredictAnswer:
    """Scores in the order of the candidates; None where a candidate is invalid."""

    model: str
    version: str
    scores: list[float | None]
    errors: dict[int, str] = field(default_factory=dict)


def index_primitives(
    candidates: Iterable[Sequence[Primitive]],
) -> tuple[list[Primitive], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct primitives of candidates, with `indices` and `lengths` of `PredictRequest`."""
    known: dict[Primitive, int] = {}
    indexed = [[known.setdefault(p, len(known)) for p in candidate] for candidate in candidates]
    return list(known), *_flatten(indexed)


def request_of(
    task: Task,
    candidates: Iterable[Sequence[Primitive]],
    platform: str | None = None,
    version: str | None = None,
) -> PredictRequest:
    """Return a request for the scores of a task's candidates that reports invalid ones individually."""
    primitives, indices, lengths = index_primitives(candidates)
    return PredictRequest(
        workload_key=task.workload_key,
        target=task.target,
        platform=platform,
        version=version,
        report_invalid=True,
        primitives=primitives,
        indices=indices,
        lengths=lengths,
        dialect=task.dialect,
    )


def encode_predict(
    task: Task,
    primitives: Sequence[str],
    candidates: Sequence[Sequence[int]],
    *,
    platform: str | None = None,
    version: str | None = None,
) -> bytes:
    """Return the body of a predict request.

    Parameters
    ----------
    primitives : sequence of str
        The distinct primitives as JSON text, as in a record.
    candidates : sequence of sequences of int
        Indices into `primitives`.
    """
    described = {"workload_key": task.workload_key, "target": task.target, "platform": platform}
    if (dialect := stated_name(task.dialect)) is not None:
        described["dialect"] = dialect
    head: dict[str, Any] = {
        "format": FORMAT,
        "task": described,
        "version": version,
        "on_invalid": "report",
    }
    indices = json.dumps(candidates, separators=(",", ":"))
    body = f'{json.dumps(head)[:-1]}, "primitives": [{",".join(primitives)}], "candidates": {indices}}}'
    return body.encode()


def decode_predict_answer(body: bytes, candidates: int) -> PredictAnswer:
    """Check and return the answer to a predict request of `candidates` candidates.

    Raises
    ------
    BadAnswer
        If it is not one score, finite or null, for each candidate.
    """
    answer = decode_answer(body)
    scores = answer.get("scores")
    if not isinstance(scores, list) or len(scores) != candidates:
        found = len(scores) if isinstance(scores, list) else "no"
        raise BadAnswer(f"asked for {candidates} scores, the answer has {found}")
    for position, score in enumerate(scores):
        # Compare without conversion: an integer of 310 digits does not fit a float. NaN fails the comparison.
        if score is not None and not (type(score) in (float, int) and -_MAX_SCORE <= score <= _MAX_SCORE):
            raise BadAnswer(
                f"scores[{position}]: expected a number that fits 32 bits or null, got {shown(score)}"
            )
    model, version = answer.get("model"), answer.get("version")
    if not is_text(model) or not is_name(version):
        raise BadAnswer("the answer does not name model and version")
    return PredictAnswer(model, version, scores, read_errors(answer.get("errors"), "candidate"))


def read_predict(document: object) -> PredictRequest:
    """Check a parsed JSON predict request.

    Raises
    ------
    InvalidRequest
        If it breaks the wire format. The message names the place, as in
        ``candidates[3], primitive 7: unknown primitive kind 'PPT'``.
    """
    fields = read_head(
        document, ("format", "task", "version", "on_invalid", "validity", "primitives", "candidates")
    )
    task = read_object(fields.get("task"), "task", ("workload_key", "target", "platform", "dialect"))
    dialect = find(read_dialect(task.get("dialect"), "task.dialect"))
    workload_key = read_text(task.get("workload_key"), "task.workload_key", MAX_WORKLOAD_KEY)
    target = read_text(task.get("target"), "task.target", MAX_TARGET)
    candidates = fields.get("candidates")
    if not isinstance(candidates, list) or not candidates:
        raise InvalidRequest("candidates: a list of one or more candidates is needed")
    report = read_on_invalid(fields)
    validity = fields.get("validity", False)
    if not isinstance(validity, bool):
        raise InvalidRequest(f"validity: true or false, not {shown(validity)}")
    if fields.get("primitives") is not None:
        primitives, indices, lengths, errors = _read_indexed(dialect, fields["primitives"], candidates)
    else:
        primitives, indices, lengths, errors = _read_nested(dialect, candidates)
    indices, lengths = _without_too_large(dialect, primitives, indices, lengths, errors)
    if errors and not report:
        raise InvalidRequest(errors[min(errors)])
    return PredictRequest(
        workload_key=workload_key,
        target=target,
        platform=read_name(task.get("platform"), "task.platform"),
        version=read_name(fields.get("version"), "version"),
        report_invalid=report,
        primitives=primitives,
        indices=indices,
        lengths=lengths,
        errors=errors,
        validity=validity,
        dialect=dialect.name,
    )


_Indexed = tuple[list[Primitive], npt.NDArray[np.int64], npt.NDArray[np.int64], dict[int, str]]

#: Placeholder of an invalid primitive. Candidates that contain it are not scored.
_PLACEHOLDER = Primitive("", ())


def _read_indexed(dialect: Dialect, steps: object, candidates: list[Any]) -> _Indexed:
    if not isinstance(steps, list):
        raise InvalidRequest("primitives: a list of primitives is needed")
    primitives, broken = [], {}
    read_primitive = dialect.read_primitive
    for position, step in enumerate(steps):
        try:
            primitives.append(read_primitive(step))
        except InvalidPrimitive as error:
            primitives.append(_PLACEHOLDER)
            broken[position] = str(error)
    try:
        flat = list(chain.from_iterable(candidates))
        is_integers = set(map(type, candidates)) == {list} and set(map(type, flat)) <= {int}
    except TypeError:
        is_integers = False
    if is_integers and not broken:
        with suppress(OverflowError):
            indices = np.array(flat, dtype=np.int64)
            if not flat or (indices.min() >= 0 and indices.max() < len(primitives)):
                lengths = np.fromiter(map(len, candidates), dtype=np.int64, count=len(candidates))
                return primitives, indices, lengths, {}
    # At least one candidate is invalid, so check each one separately.
    good: list[list[int]] = []
    errors: dict[int, str] = {}
    for position, candidate in enumerate(candidates):
        fault = _index_fault(candidate, len(primitives), broken)
        if fault is not None:
            errors[position] = f"candidates[{position}]{fault}"
        good.append([] if fault is not None else candidate)
    return primitives, *_flatten(good), errors


def _without_too_large(
    dialect: Dialect,
    primitives: list[Primitive],
    indices: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    errors: dict[int, str],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Remove candidates with too many primitives or sizes, and add an error for each."""
    longest = int(lengths.max())
    if longest <= dialect.max_steps and longest * dialect.max_sizes_of_step <= dialect.max_sizes:
        return indices, lengths  # the case of nearly all requests
    sizes_before = np.zeros(len(indices) + 1, dtype=np.int64)
    np.cumsum(
        np.array([*map(dialect.sizes_of, primitives), 0], dtype=np.int64)[indices], out=sizes_before[1:]
    )
    ends = np.cumsum(lengths)
    sizes = sizes_before[ends] - sizes_before[ends - lengths]
    is_too_large = (lengths > dialect.max_steps) | (sizes > dialect.max_sizes)
    if not is_too_large.any():
        return indices, lengths
    for position in np.flatnonzero(is_too_large).tolist():
        steps = int(lengths[position])
        if steps > dialect.max_steps:
            fault = too_many_steps(steps, dialect.max_steps)
        else:
            fault = too_many_sizes(int(sizes[position]), dialect.max_sizes)
        errors[position] = f"candidates[{position}]: {fault}"
    return indices[~np.repeat(is_too_large, lengths)], np.where(is_too_large, 0, lengths)


def _index_fault(candidate: object, count: int, broken: dict[int, str]) -> str | None:
    if not isinstance(candidate, list):
        return f": a candidate is a list of primitive indices, not {shown(candidate)}"
    for position, index in enumerate(candidate):
        if type(index) is not int:
            return f", primitive {position}: an index into 'primitives' is an integer, not {shown(index)}"
        if not 0 <= index < count:
            return f", primitive {position}: index {index:d} is out of range, there are {count} primitives"
        if index in broken:
            return f", primitive {position} (primitives[{index}]): {broken[index]}"
    return None


def _read_nested(dialect: Dialect, candidates: list[Any]) -> _Indexed:
    known: dict[Primitive, int] = {}
    good: list[list[int]] = []
    errors: dict[int, str] = {}
    for position, candidate in enumerate(candidates):
        indices: list[int] = []
        try:
            if not isinstance(candidate, list):
                raise InvalidPrimitive(f": a candidate is a list of primitives, not {shown(candidate)}")
            for place, step in enumerate(candidate):
                try:
                    indices.append(known.setdefault(dialect.read_primitive(step), len(known)))
                except InvalidPrimitive as error:
                    raise InvalidPrimitive(f", primitive {place}: {error}") from None
        except InvalidPrimitive as error:
            errors[position] = f"candidates[{position}]{error}"
            indices = []
        good.append(indices)
    return list(known), *_flatten(good), errors


def _flatten(candidates: list[list[int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    flat = np.array(list(chain.from_iterable(candidates)), dtype=np.int64)
    return flat, np.array(list(map(len, candidates)), dtype=np.int64)
