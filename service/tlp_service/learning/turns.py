"""Which platform learns next: pure arithmetic on how much was measured.

Whoever sends measurements names platforms, and each that is trained on costs about a minute, whatever its records are worth. So platforms that were
refused wait for ever more records, and those that learned before and newcomers take turns: a crowd of the one kind does not keep the
other from learning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

#: Refusals in a row that count; a billion times the records is never.
_MAX_REFUSALS = 30
#: Share of the records that is enough where it is urgent: the serving version's error drifts, or a refused platform has waited long.
_URGENT = 4


@dataclass(frozen=True, slots=True)
class Standing:
    """How a platform stands.

    Parameters
    ----------
    platform : str
        Its name.
    records, trained : int
        Records that it has, and had when a verdict on it was last written; 0 for none yet.
    refusals : int
        Verdicts in a row that were against what it had learned.
    is_drifting : bool
        Whether the serving version's error drifts on it.
    is_overdue : bool
        Whether it has waited for long.
    """

    platform: str
    records: int
    trained: int = 0
    refusals: int = 0
    is_drifting: bool = False
    is_overdue: bool = False

    @property
    def new(self) -> int:
        """Records since the last verdict."""
        return max(0, self.records - self.trained)

    def with_records(self, records: int) -> Standing:
        """Return how the platform stands with another number of records."""
        return replace(self, records=records)

    def is_due(self, needed: int) -> bool:
        """Return whether it is to learn, where so many new records are needed: twice as many after each refusal."""
        if self.is_overdue and not self.refusals:
            return self.new > 0
        needed <<= min(self.refusals, _MAX_REFUSALS)
        if self.is_drifting or self.is_overdue:
            needed //= _URGENT
        return self.new >= max(1, needed)


def in_turn(standings: Iterable[Standing], needed: int, newcomers_first: bool = True) -> list[Standing]:
    """Return the platforms that are due, in the order in which they are to learn.

    Those that learned before and newcomers alternate. Among either those come first whose error drifts, then those that were
    refused least often, then those with the most new records for what they were trained on.

    Parameters
    ----------
    needed : int
        New records at which a platform learns.
    newcomers_first : bool
        Whose turn it is.
    """

    def place(standing: Standing) -> tuple[bool, int, float, int, str]:
        gain = standing.new / (standing.trained + needed)
        return not standing.is_drifting, standing.refusals, -gain, -standing.new, standing.platform

    due = sorted((s for s in standings if s.is_due(needed)), key=place)
    newcomers = [s for s in due if not s.trained]
    known = [s for s in due if s.trained]
    pairs = zip_longest(newcomers, known) if newcomers_first else zip_longest(known, newcomers)
    return list(_there(chain.from_iterable(pairs)))


def _there(standings: Iterable[Standing | None]) -> Iterator[Standing]:
    return (standing for standing in standings if standing is not None)
