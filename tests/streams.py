"""Puts measurements into a measurement stream: as a server does, or past it."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import redis

from tlp_service.measurements.stream import STREAM, Entry, MeasurementStream


def entries_of(lines: Iterable[str], platform: str = "epyc", prefix: str = "") -> list[Entry]:
    """Return entries with the ids 0, 1, …, after a prefix."""
    return [Entry(f"{prefix}{n}", line, "w", platform, "base-1") for n, line in enumerate(lines)]


def send(client: redis.Redis, entries: Sequence[Entry]) -> list[str]:
    """Put entries into the stream without a look at their ids, and return their places in it."""
    with client.pipeline() as pipeline:
        for entry in entries:
            fields: dict[Any, Any] = entry._asdict()
            pipeline.xadd(STREAM, fields)
        return pipeline.execute()


def append(url: str, entries: Sequence[Entry]) -> list[int]:
    """Append entries as a server does, and return the positions of those that are new."""
    return asked(url, lambda stream: stream.append(entries))


def asked(url: str, ask):
    """Return what `ask` returns, given a stream."""

    async def once():
        stream = MeasurementStream(url)
        try:
            return await ask(stream)
        finally:
            await stream.close()

    return asyncio.run(once())
