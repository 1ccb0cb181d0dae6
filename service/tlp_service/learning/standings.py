"""Which platforms are due to be trained, from counts in Redis and in the record store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from redis.exceptions import ResponseError

from tlp_service.errors import BadRecords
from tlp_service.learning.turns import Standing, in_turn
from tlp_service.measurements.stream import QUALITY
from tlp_service.quality.metrics import decode_quality
from tlp_service.records.store import RecordStore

log = logging.getLogger(__name__)

#: Keys in Redis. TRAINED: platform -> number of its records at its last verdict. REFUSED: platform -> consecutive
#: refusals. TRYING: the platform in training.
TRAINED, REFUSED, TRYING = "{tlp}:trained", "{tlp}:refused", "{tlp}:trying"
#: Maximum number of platforms to consider (those with the most records).
#: The bound is needed since clients name platforms.
_MAX_PLATFORMS = 4096


class Standings:
    """The records and verdicts of each platform of a record store.

    Parameters
    ----------
    client : Redis
        Client of the server that keeps the counts; it decodes answers.
    store : RecordStore
        The records to learn from.
    records : int
        New records at which a platform is due, see `Standing.is_due`.
    seconds : float
        Seconds after its last verdict at which a platform with any new records is due.
    clock : callable
        Returns seconds, as `time.monotonic` does.
    """

    def __init__(
        self,
        client: Any,
        store: RecordStore,
        records: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._store = store
        self._records = records
        self._seconds = seconds
        self._clock = clock
        self._began_s = clock()
        # All three map a platform: to the number of rows in its files; to the time of its last verdict;
        # to the numbers of rows and of distinct records at the last exact count.
        # `_last` holds the platforms to train after all others: their last step failed for a reason that may persist.
        self._rows: dict[str, int] = {}
        self._learned_s: dict[str, float] = {}
        self._distinct: dict[str, tuple[int, int]] = {}
        self._last: set[str] = set()
        self._newcomers_first = True

    def due(self) -> list[Standing]:
        """Return the platforms that are due, in the order in which to train them."""
        counts = self._counts()
        trained, refused = self._noted(TRAINED, counts), self._noted(REFUSED, counts)
        # A row in two files was counted twice before the files were compacted, so the count may have fallen.
        if fewer := {p: counts[p] for p in trained if counts[p] < trained[p]}:
            self._client.hset(TRAINED, mapping=fewer)
            trained |= fewer
        drifting, now_s = self._drifting(), self._clock()
        standings = (
            Standing(
                platform,
                count,
                trained.get(platform, 0),
                refused.get(platform, 0),
                platform in drifting,
                now_s - self._learned_s.get(platform, self._began_s) >= self._seconds,
            )
            for platform, count in counts.items()
        )
        due = in_turn(standings, self._records, self._newcomers_first)
        # A platform whose training killed the trainer may do so again: train the others first.
        last = self._last | ({self._client.get(TRYING)} if due else set())
        return sorted(due, key=lambda standing: standing.platform in last)

    def is_due(self, standing: Standing) -> Standing | None:
        """Recount the distinct records of a platform, and return its standing; None if it is not due.

        Before compaction, a row that the stream delivered twice is in two files. It does not count as a new record.
        """
        rows = self._rows[standing.platform]
        if self._distinct.get(standing.platform, (None, 0))[0] != rows:
            try:
                self._distinct[standing.platform] = rows, len(self._store.read(standing.platform, ["id"]))
            except (OSError, BadRecords, pa.ArrowException) as error:
                if standing.platform not in self._last:  # log it once
                    log.warning("the records of %s cannot be read: %s", standing.platform, error)
                self.put_last(standing)
                return None
        exact = standing.with_records(self._distinct[standing.platform][1])
        return exact if exact.is_due(self._records) else None

    def put_last(self, standing: Standing) -> None:
        """Train all other platforms first until this one has a verdict, since its fault may persist."""
        self._last.add(standing.platform)

    def begin(self, standing: Standing) -> None:
        """Note that the training of a platform begins."""
        self._client.set(TRYING, standing.platform)

    def end(self, standing: Standing, is_trained: bool) -> None:
        """Note that the training of a platform has ended, whatever its outcome."""
        self._client.delete(TRYING)
        if is_trained:
            self._newcomers_first = standing.trained > 0

    def note(self, standing: Standing, is_accepted: bool) -> None:
        """Note that the verdict on a platform has been written."""
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.hset(TRAINED, standing.platform, standing.records)
            if is_accepted:
                pipeline.hdel(REFUSED, standing.platform)
            else:
                pipeline.hset(REFUSED, standing.platform, standing.refusals + 1)
            pipeline.execute()
        self._learned_s[standing.platform] = self._clock()
        self._last.discard(standing.platform)

    def _noted(self, key: str, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers that a key holds for the platforms in `counts`.

        If the key has too many platforms, those that are not in `counts` are deleted from it.
        """
        noted = {platform: _number(text) for platform, text in self._client.hgetall(key).items()}
        if len(noted) > _MAX_PLATFORMS:
            self._client.hdel(key, *(noted.keys() - counts.keys()))
        return {platform: number for platform, number in noted.items() if platform in counts}

    def _counts(self) -> dict[str, int]:
        """Return the records of the largest platforms; distinct records if they were counted, else rows."""
        rows = self._store.counts()
        if len(rows) > _MAX_PLATFORMS:
            rows = dict(sorted(rows.items(), key=lambda item: (-item[1], item[0]))[:_MAX_PLATFORMS])
        self._rows = rows
        self._last &= rows.keys()
        for platform in self._learned_s.keys() - rows.keys():
            del self._learned_s[platform]
        for platform in self._distinct.keys() - rows.keys():
            del self._distinct[platform]
        known = {p: distinct for p, (of_rows, distinct) in self._distinct.items() if of_rows == rows[p]}
        return rows | known

    def _drifting(self) -> set[str]:
        """Return the platforms on which the serving version ranks new measurements worse than at the gate."""
        try:
            report = self._client.get(QUALITY)
        except ResponseError:  # the key holds another type
            return set()
        platforms = decode_quality(None if report is None else report.encode())["platforms"]
        return {
            platform
            for platform, versions in platforms.items()
            if any(figures["serving"] and figures.get("drifting") for figures in versions.values())
        }


def _number(text: str) -> int:
    """Return a count that a trainer noted; 0 if the text is not a count."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0
