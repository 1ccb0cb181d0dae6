"""A lease in Redis for work that only one process may do, with a fencing token that grows with each holder."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

from redis.exceptions import RedisError

log = logging.getLogger(__name__)

# Both scripts check atomically that this process still holds the lease before they change it.
_RENEW = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('EXPIRE', KEYS[1], ARGV[2]) end return 0"
)
_GIVE_UP = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class Lease:
    """A lease that this process holds; a thread renews it until the context ends.

    Parameters
    ----------
    client : Redis
        Client of the Redis server that stores the lease.
    key : str
        Redis key of the lease.
    fence : int
        Fencing token, larger than that of every earlier holder.
    seconds : int
        Seconds after which the lease expires unless it is renewed.
    """

    def __init__(self, client: Any, key: str, fence: int, seconds: int) -> None:
        self.fence = fence
        self._client = client
        self._key = key
        self._seconds = seconds
        self._ended = threading.Event()

    def is_held(self) -> bool:
        """Renew the lease, and return whether this process holds it; False if Redis cannot be reached."""
        try:
            return bool(self._client.eval(_RENEW, 1, self._key, self.fence, self._seconds))
        except RedisError:
            return False

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds / 3):
            self.is_held()

    def _end(self) -> None:
        self._ended.set()
        with contextlib.suppress(RedisError):  # the lease expires by itself
            self._client.eval(_GIVE_UP, 1, self._key, self.fence)


@contextlib.contextmanager
def leased(client: Any, key: str, seconds: int = 60) -> Iterator[Lease | None]:
    """Acquire a lease for the context; yield None if another process holds it.

    Raises
    ------
    RedisError
        If Redis cannot be reached.
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
