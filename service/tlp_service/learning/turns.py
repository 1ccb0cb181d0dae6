"""Decides which platforms are due for training, and in which order. Pure.

Clients may name any platform, and training on one takes about a minute even if its records are useless.
So each refusal doubles the number of records that a platform needs.
New platforms alternate with those that were trained before, so neither group starves the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

#: Maximum number of consecutive refusals that count.
#: They multiply the needed records by a billion, which is out of reach.
_MAX_REFUSALS = 30
#: Divisor of the needed records if the serving version's error drifts, or a refused platform is overdue.
_URGENT = 4


@dataclass(frozen=True, slots=True)
class Standing:
    """The records and verdicts of a platform.

    Parameters
    ----------
    platform : str
        The platform's name.
    records, trained : int
        Number of records now, and at the last verdict (0 without a verdict).
    refusals : int
        Consecutive verdicts that rejected the trained network.
    is_drifting : bool
        Whether the serving version's error drifts on it.
    is_overdue : bool
        Whether the time limit since its last verdict has passed.
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
        """Return the same standing with another number of records."""
        return replace(self, records=records)

    def is_due(self, needed: int) -> bool:
        """Return whether the platform is due: it needs `needed` new records, doubled by each refusal."""
        if self.is_overdue and not self.refusals:
            return self.new > 0
        needed <<= min(self.refusals, _MAX_REFUSALS)
        if self.is_drifting or self.is_overdue:
            needed //= _URGENT
        return self.new >= max(1, needed)


def in_turn(standings: Iterable[Standing], needed: int, newcomers_first: bool = True) -> list[Standing]:
    """Return the platforms that are due, in the order in which to train them.

    Platforms that were trained before alternate with new ones. In each group, drifting platforms come first, then
    those with the fewest refusals, then those with the most new records relative to their last verdict.

    Parameters
    ----------
    needed : int
        New records at which a platform is trained.
    newcomers_first : bool
        Whether the first turn is that of a new platform.
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
