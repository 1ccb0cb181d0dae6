"""Who may do something that only one process may do: a lease in Redis, with a number that grows with each holder (a fence)."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

from redis.exceptions import RedisError

log = logging.getLogger(__name__)

# Both look whether the lease is still this holder's, and act in one step.
_RENEW = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('EXPIRE', KEYS[1], ARGV[2]) end return 0"
)
_GIVE_UP = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class Lease:
    """A lease that is held, and renewed by a thread as long as it is.

    Parameters
    ----------
    client : Redis
        Of the server that keeps it.
    key : str
        What it is for.
    fence : int
        Larger than that of every earlier holder.
    seconds : int
        After which it falls to another one if this process does not renew it.
    """

    def __init__(self, client: Any, key: str, fence: int, seconds: int) -> None:
        self.fence = fence
        self._client = client
        self._key = key
        self._seconds = seconds
        self._ended = threading.Event()

    def is_held(self) -> bool:
        """Ask the server whether it is still this process's; no where it cannot be asked."""
        try:
            return bool(self._client.eval(_RENEW, 1, self._key, self.fence, self._seconds))
        except RedisError:
            return False

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds / 3):
            self.is_held()

    def _end(self) -> None:
        self._ended.set()
        with contextlib.suppress(RedisError):  # it ends by itself
            self._client.eval(_GIVE_UP, 1, self._key, self.fence)


@contextlib.contextmanager
def leased(client: Any, key: str, seconds: int = 60) -> Iterator[Lease | None]:
    """Hold a lease in the context; None if another process holds it.

    Raises
    ------
    RedisError
        If the server cannot be asked.
    """
    fence = int(client.incr(f"{key}:fence"))
    if not client.set(key, fence, nx=True, ex=seconds):
        yield None
        return
    lease = Lease(client, key, fence, seconds)
    keeper = threading.Thread(target=lease._keep, name="tlp-lease", daemon=True)
    keeper.start()
    try:
        yield lease
    finally:
        lease._end()
        keeper.join()
