"""Holds back entries of platforms that the record store refuses for now, such as one with a read-only folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tlp_service.measurements.entry_ids import before, order
from tlp_service.measurements.portions import Message, Portions, held_consumer
from tlp_service.measurements.stream import GROUP, STREAM

log = logging.getLogger(__name__)

#: Exponential back-off of a refused platform in seconds: first and maximum pause.
_PAUSE_S, _MAX_PAUSE_S = 1.0, 60.0
#: Maximum number of refused platforms. With more, the store as a whole counts as failed.
#: The bound is needed since clients name platforms.
_MAX_PLATFORMS = 1000
#: Id that sorts before all entries.
_FIRST = "0-0"


@dataclass(slots=True)
class _Refused:
    """A refused platform: its first entry that is not stored, its current pause, and the time of the next try."""

    first: str
    pause_s: float
    due_s: float


class HeldBack:
    """Entries of refused platforms, which stay in the stream until they can be stored.

    They are pending for a consumer of their own, so they do not block later entries, and this process keeps only
    one entry id per platform. An earlier release, or a recorder on another machine, claims them like the entries of
    a dead consumer.

    Parameters
    ----------
    client : Redis
        Client of the Redis server that holds the stream; it decodes answers.
    consumer : str
        Name of the recorder's consumer.
    clock : callable
        Returns seconds, as `time.monotonic` does.

    Attributes
    ----------
    consumer : str
        Name of the consumer for which they are pending.
    """

    def __init__(self, client: Any, consumer: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self.consumer = held_consumer(consumer)
        self._portions = Portions(client, self.consumer)
        self._clock = clock
        self._refused: dict[str, _Refused] = {}
        # The pass in progress: the platform to retry (None for all), and the entry after which the pass continues.
        self._pass: tuple[str | None, str] | None = (None, _FIRST)

    def refuses(self, platform: str) -> bool:
        """Return whether entries of a platform must be held back now."""
        return platform in self._refused and not (self._pass and self._pass[0] == platform)

    def portion(self, count: int, nbytes: int) -> list[Message]:
        """Return the next held-back entries to retry, if any; entries of other refused platforms are among them."""
        if self._pass is None and (due := self._due()) is not None:
            self._pass = due, before(self._refused[due].first)
        if self._pass is None:
            return []
        platform, after = self._pass
        if found := self._portions.pending(after, count, nbytes):
            self._pass = platform, found[-1][0]
            return found
        self._pass = None
        if platform is not None:
            del self._refused[platform]
            log.info("measurements of %s go to the record store again", platform)
        return []

    def keep(self, entries: Mapping[str, str], reasons: Mapping[str, Exception], are_held: bool) -> None:
        """Hold entries back.

        Parameters
        ----------
        entries : mapping
            Id of an entry -> its platform, in the order of the stream.
        reasons : mapping
            Platform -> the error with which the store refused its records just now.
        are_held : bool
            Whether `portion` returned the entries, so they are held back already.

        Raises
        ------
        Exception
            The first of the reasons, if too many platforms are refused.
        """
        if len(self._refused.keys() | reasons.keys()) > _MAX_PLATFORMS:
            raise next(iter(reasons.values()))
        if not are_held:
            self._client.xclaim(STREAM, GROUP, self.consumer, 0, list(entries), justid=True)
        left = dict(reasons)
        for entry, platform in entries.items():
            if (reason := left.pop(platform, None)) is not None:
                self._refuse(platform, entry, reason)
            known = self._refused[platform]
            known.first = min(known.first, entry, key=order)
        if self._pass is not None and self._pass[0] in reasons:
            self._pass = None

    def begin_again(self) -> None:
        """Restart the pass in progress, so that the entries of a lost answer are read again."""
        is_whole = self._pass is not None and self._pass[0] is None
        self._pass = (None, _FIRST) if is_whole else None

    def look(self) -> None:
        """Start a pass over all held-back entries if this process knows no refused platform.

        Such entries were left by another process.
        """
        if self._pass is None and not self._refused:
            self._pass = None, _FIRST

    def _refuse(self, platform: str, entry: str, reason: Exception) -> None:
        known = self._refused.get(platform)
        if known is None:
            log.warning("measurements of %s wait in the stream: %s", platform, reason)
        pause_s = min(2 * known.pause_s, _MAX_PAUSE_S) if known else _PAUSE_S
        self._refused[platform] = _Refused(entry, pause_s, self._clock() + pause_s)

    def _due(self) -> str | None:
        """Return the platform to retry now, or None."""
        platform = min(self._refused, key=lambda name: self._refused[name].due_s, default=None)
        return platform if platform and self._refused[platform].due_s <= self._clock() else None
