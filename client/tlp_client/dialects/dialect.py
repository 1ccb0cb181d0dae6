"""The interface of a dialect, see `tlp_client.dialects`."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tlp_client.bounded import memory_of
from tlp_client.errors import InvalidPrimitive, InvalidRecord, shown
from tlp_client.primitives import (
    MAX_SIZES,
    MAX_STEPS,
    Argument,
    Primitive,
    too_many_sizes,
    too_many_steps,
)
from tlp_client.tasks import Task, canonical_workload_key

if TYPE_CHECKING:
    from tlp_client.records import Record, RecordParser


class Dialect(ABC):
    """How one tuner writes primitives, records and workloads.

    A subclass defines the kinds of primitives and the form of a record. The other methods are correct for
    every dialect whose records are JSON objects; a subclass may override them with faster ones.

    Attributes
    ----------
    name : str
        Name of the dialect in requests, in the record store and in the manifests of model versions.
    versions : tuple of str
        Versions of its record form, the oldest first.
    kinds : collection of str
        Kinds of its primitives.
    max_steps, max_sizes : int
        Maximum primitives of a candidate, and maximum sizes. They bound the work that a candidate causes.
    max_sizes_of_step : int
        Maximum that `sizes_of` returns.
    """

    name: ClassVar[str]
    versions: ClassVar[tuple[str, ...]]
    kinds: ClassVar[Collection[str]]
    max_steps: ClassVar[int] = MAX_STEPS
    max_sizes: ClassVar[int] = MAX_SIZES
    max_sizes_of_step: ClassVar[int] = 0

    @abstractmethod
    def read_arguments(self, kind: str, args: Sequence[Any]) -> tuple[Argument, ...]:
        """Check the parsed JSON arguments of a primitive of a known kind, and return them typed.

        Raises
        ------
        InvalidPrimitive
            If the arguments are not valid for the kind.
        """

    @abstractmethod
    def read_record(self, document: object) -> Record:
        """Check a parsed JSON record and return it typed.

        The task of the record must have the name of this dialect.

        Raises
        ------
        InvalidInput
            If it is not a record of a known version; the message names the part.
        """

    @abstractmethod
    def record_json(self, record: Record) -> dict[str, Any]:
        """Return a record as the JSON object that `read_record` reads."""

    @abstractmethod
    def task_json(self, task: Task) -> Any:
        """Return the JSON value that represents a task in a record."""

    def read_primitive(self, step: object) -> Primitive:
        """Check one step of a candidate and return it typed, see `tlp_client.primitives.read_primitive`."""
        if not isinstance(step, Sequence) or isinstance(step, (str, bytes)) or not step:
            raise InvalidPrimitive(f"a primitive is a list [kind, arguments…], not {shown(step)}")
        kind, args = step[0], step[1:]
        if not isinstance(kind, str):
            raise InvalidPrimitive(f"a primitive begins with its kind, not with {shown(kind)}")
        if kind not in self.kinds:
            raise InvalidPrimitive(f"unknown primitive kind {shown(kind)}; known: {' '.join(self.kinds)}")
        return Primitive(kind, self.read_arguments(kind, args))

    def read_primitives(self, steps: Iterable[object]) -> tuple[Primitive, ...]:
        """Check the steps of one candidate; an error names the step's position."""
        primitives = []
        for position, step in enumerate(steps):
            try:
                primitives.append(self.read_primitive(step))
            except InvalidPrimitive as error:
                raise InvalidPrimitive(f"primitive {position}: {error}") from None
        self.check_candidate(primitives)
        return tuple(primitives)

    def sizes_of(self, primitive: Primitive) -> int:
        """Return the maximum number of loop sizes that a primitive adds, at most `max_sizes_of_step`."""
        return 0

    def check_candidate(self, primitives: Sequence[Primitive]) -> None:
        """Raise `InvalidPrimitive` if a candidate has too many primitives or sizes."""
        if len(primitives) > self.max_steps:
            raise InvalidPrimitive(too_many_steps(len(primitives), self.max_steps))
        # Nearly all candidates are too short to exceed the limit, so their sizes need not be counted.
        if len(primitives) * self.max_sizes_of_step > self.max_sizes:
            sizes = sum(map(self.sizes_of, primitives))
            if sizes > self.max_sizes:
                raise InvalidPrimitive(too_many_sizes(sizes, self.max_sizes))

    def parse_line(self, line: str, parser: RecordParser) -> Record:
        """Return the record of one line.

        Parameters
        ----------
        line : str
            The line, already checked against the maximum length.
        parser : RecordParser
            Caches tasks and primitives. The bytes of new ones must be added to its `made_bytes`.

        Raises
        ------
        InvalidInput
            If the line is not a record of a known version; the message names the part.
        """
        try:
            document = json.loads(line)
        except ValueError as error:
            raise InvalidRecord(f"not JSON: {error}") from None
        except RecursionError:
            raise InvalidRecord("not JSON: nested too deeply") from None
        record = self.read_record(document)
        parser.made_bytes += record.task.nbytes + memory_of(record.primitives)
        return record

    def line(self, record: Record) -> str:
        """Return the line of a record, without a newline. A line is a JSON object."""
        return json.dumps(self.record_json(record), ensure_ascii=False)

    def line_of(self, record: Record, task: str, steps: str) -> str:
        """Return the same as `line`, from the JSON text of the record's task and list of primitives."""
        return self.line(record)

    def split_primitives(self, candidates: Iterable[str]) -> tuple[list[str], list[list[int]]]:
        """Return the distinct primitives of candidates as JSON text, and each candidate as indices into them.

        Parameters
        ----------
        candidates : iterable of str
            Candidates as text, see `tlp_client.tuning_client.Tuner.candidates`. This method expects record
            lines.

        Raises
        ------
        InvalidInput
            If a text is not of this form.
        """
        known: dict[str, int] = {}
        found = []
        for line in candidates:
            try:
                record = self.read_record(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise InvalidRecord(f"a candidate is not a record line: {error}") from None
            texts = [json.dumps(primitive.to_json()) for primitive in record.primitives]
            found.append([known.setdefault(text, len(known)) for text in texts])
        return list(known), found

    def workload(self, key: str, /) -> str:
        """Return a workload key in one canonical spelling, by which records are grouped and a store is split.

        It begins with the name of the dialect, since the keys of two dialects may be equal.
        """
        return f"{self.name}:{canonical_workload_key(key)}"
