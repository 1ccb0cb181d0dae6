"""``tlp serve`` whose networks score nothing while a file exists, so that a test can create queues.

    HOLD_FILE=path python held_server.py serve …

With ``REDIS_WAIT_S`` a request waits so many seconds for a connection to Redis, and much longer for an answer on it.
"""

import os
import sys
import time
from pathlib import Path

import redis.asyncio

from tlp_service.cli import main
from tlp_service.inference.network import OnnxNetwork

HOLD_FILE = Path(os.environ["HOLD_FILE"] or "/nonexistent")

_score = OnnxNetwork.score


def _held_score(self, *arguments):
    while HOLD_FILE.exists():
        time.sleep(0.01)
    return _score(self, *arguments)


if __name__ == "__main__":
    OnnxNetwork.score = _held_score  # type: ignore[method-assign]  # replaced on purpose
    if wait_s := float(os.environ["REDIS_WAIT_S"]):
        pool_from_url = redis.asyncio.BlockingConnectionPool.from_url
        redis.asyncio.BlockingConnectionPool.from_url = lambda *arguments, **options: pool_from_url(  # type: ignore[method-assign]  # as above
            *arguments, **{**options, "timeout": wait_s, "socket_timeout": 3600}
        )
    sys.exit(main())
