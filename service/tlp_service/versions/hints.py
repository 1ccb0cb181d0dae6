"""Notifies servers through Redis Pub/Sub that the registry has changed.

A lost notification only delays a server, since it polls the registry every other second anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from redis.exceptions import RedisError

from tlp_service.redis_url import connect, connect_asyncio

CHANNEL = "{tlp}:models"

#: Seconds until a lost subscription is retried.
_PAUSE_S = 2.0
#: Timeout of a notification in seconds.
_TELLING_S = 2.0


async def listen(url: str, wake: Callable[[], None]) -> None:
    """Call `wake` at each change and after each reconnection, which may have missed changes; runs until cancelled."""
    while True:
        client = connect_asyncio(url, timeout_s=None)
        with contextlib.suppress(RedisError, OSError):
            async with client, client.pubsub() as subscription:
                await subscription.subscribe(CHANNEL)
                async for _ in subscription.listen():  # the first message confirms the subscription
                    wake()
        await asyncio.sleep(_PAUSE_S)


def tell(url: str, version: str | None) -> None:
    """Notify all servers; do nothing if Redis cannot be reached."""
    client = connect(url, _TELLING_S, retries=0, connect_timeout_s=_TELLING_S)
    with contextlib.suppress(RedisError, OSError), client:
        client.publish(CHANNEL, version or "")
