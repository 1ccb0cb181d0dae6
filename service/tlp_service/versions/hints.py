"""Tells servers through Redis that the registry has changed. Only a hint: they look at it every other second anyway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from redis.exceptions import RedisError

from tlp_service.redis_url import connect, connect_asyncio

CHANNEL = "{tlp}:models"

#: Seconds until it is tried again to listen.
_PAUSE_S = 2.0
#: Seconds that telling may take.
_TELLING_S = 2.0


async def listen(url: str, wake: Callable[[], None]) -> None:
    """Call `wake` at each change, and after each time that some may have been missed; ends when cancelled."""
    while True:
        client = connect_asyncio(url, timeout_s=None)
        with contextlib.suppress(RedisError, OSError):
            async with client, client.pubsub() as subscription:
                await subscription.subscribe(CHANNEL)
                async for _ in subscription.listen():  # the first tells that it has begun
                    wake()
        await asyncio.sleep(_PAUSE_S)


def tell(url: str, version: str | None) -> None:
    """Tell all servers, if Redis is there."""
    client = connect(url, _TELLING_S, retries=0, connect_timeout_s=_TELLING_S)
    with contextlib.suppress(RedisError, OSError), client:
        client.publish(CHANNEL, version or "")
