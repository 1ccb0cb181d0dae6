"""The write probe: one write at a time, no caller waits longer than it wants, and no report names an address."""

import asyncio

import pytest
import redis

from tlp_service.measurements.faults import cause_of
from tlp_service.measurements.write_probe import _FRESH_S, WriteProbe

pytestmark = pytest.mark.anyio


class Writes:
    """Writes that end when the test lets them, and a clock that stands still."""

    def __init__(self):
        self.now_s = 0.0
        self.begun = 0
        self.outcome = asyncio.get_running_loop().create_future()
        self.probe = WriteProbe(self.write, lambda: self.now_s)

    async def write(self):
        self.begun += 1
        return await asyncio.shield(self.outcome)

    def ends(self, error=None):
        outcome, self.outcome = self.outcome, asyncio.get_running_loop().create_future()
        if error is None:
            outcome.set_result(1)
        else:
            outcome.set_exception(error)


async def test_those_who_ask_at_once_share_one_write():
    writes = Writes()
    asking = [asyncio.create_task(writes.probe.reason()) for _ in range(50)]
    while not writes.begun:
        await asyncio.sleep(0)
    writes.ends()
    assert await asyncio.gather(*asking) == [None] * 50
    assert writes.begun == 1


async def test_a_write_is_tried_again_when_what_is_known_has_grown_old():
    writes = Writes()
    writes.probe.note(None)
    writes.now_s = _FRESH_S / 2
    assert await writes.probe.reason() is None
    assert writes.begun == 0
    writes.now_s = _FRESH_S
    asking = asyncio.create_task(writes.probe.reason())
    while not writes.begun:
        await asyncio.sleep(0)
    writes.ends(redis.ReadOnlyError("You can't write against a read only replica."))
    assert await asking == "it is a read-only replica"


async def test_who_waits_for_no_longer_hears_what_was_known_before():
    writes = Writes()
    assert await writes.probe.reason(wait_s=0) == "it has not answered yet"
    writes.ends()
    assert await writes.probe.reason() is None
    writes.now_s = 10.0
    assert await writes.probe.reason(wait_s=0) is None
    writes.probe.close()


async def test_a_write_that_fails_in_an_unknown_way_is_told_and_tried_again():
    writes = Writes()
    asking = asyncio.create_task(writes.probe.reason())
    while not writes.begun:
        await asyncio.sleep(0)
    writes.ends(AttributeError("x"))
    assert await asking == "it cannot be reached"
    writes.now_s = 10.0
    asking = asyncio.create_task(writes.probe.reason())
    while writes.begun < 2:
        await asyncio.sleep(0)
    writes.ends()
    assert await asking is None


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (redis.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "it is full: it has"),
        (redis.ReadOnlyError("You can't write against a read only replica."), "it is a read-only replica"),
        (redis.exceptions.MovedError("1234 10.0.0.7:6379"), "it is a node of a cluster"),
        (redis.BusyLoadingError("Redis is loading the dataset in memory"), "it is still loading"),
        (redis.AuthenticationError("invalid password of 10.0.0.7"), "it refuses the user"),
        (redis.exceptions.NoPermissionError("no permissions to run 'xadd'"), "it refuses the user"),
        (redis.ResponseError("MISCONF Errors writing to the AOF file: /data/x"), "it answers MISCONF"),
        (redis.ResponseError("NOREPLICAS Not enough good replicas to write."), "it answers NOREPLICAS"),
        (redis.ResponseError("unknown command 'EVALSHA' of 10.0.0.7"), "it refuses the user"),
        (redis.ConnectionError("Error 111 connecting to 10.0.0.7:6379."), "it cannot be reached"),
        (redis.TimeoutError("Timeout reading from 10.0.0.7:6379"), "it does not answer"),
        (asyncio.TimeoutError(), "it does not answer"),
        (OSError(113, "No route to host 10.0.0.7"), "it cannot be reached"),
    ],
)
async def test_a_cause_names_no_address(error, cause):
    told = cause_of(error)
    assert told.startswith(cause)
    assert "10.0.0.7" not in told
    assert "/data" not in told
