"""Tells servers through Redis that the registry has changed. Only a hint: they look at it every other second anyway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

CHANNEL = "{tlp}:models"

#: Seconds until it is tried again to listen.
_PAUSE_S = 2.0
#: Seconds that telling may take.
_TELLING_S = 2.0


async def listen(url: str, wake: Callable[[], None]) -> None:
    """Call `wake` at each change, and after each time that some may have been missed; ends when cancelled."""
    while True:
        client = redis.asyncio.Redis.from_url(url, socket_connect_timeout=5, socket_timeout=None)
        with contextlib.suppress(RedisError, OSError):
            async with client, client.pubsub() as subscription:
                await subscription.subscribe(CHANNEL)
                async for _ in subscription.listen():  # the first tells that it has begun
                    wake()
        await asyncio.sleep(_PAUSE_S)


def tell(url: str, version: str | None) -> None:
    """Tell all servers, if Redis is there."""
    once = Retry(NoBackoff(), 0)
    client = redis.Redis.from_url(
        url, socket_timeout=_TELLING_S, socket_connect_timeout=_TELLING_S, retry=once
    )
    with contextlib.suppress(RedisError, OSError), client:
        client.publish(CHANNEL, version or "")
