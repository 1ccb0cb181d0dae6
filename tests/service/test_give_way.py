"""Work that gives way: it waits while there is other work, and never for good."""

import asyncio
import threading
import time as real_time

import pytest
from serving import HANG_S, at_once

from tlp_service.api.service import Caller
from tlp_service.scheduling.give_way import GiveWay
from tlp_service.scheduling.reading import Reading


class Time:
    def __init__(self):
        self.now = 100.0

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_it_waits_only_while_there_is_other_work():
    time = Time()
    busy_until = 100.0
    give_way = GiveWay(lambda: time.now < busy_until, time.clock, time.sleep)
    give_way()
    assert time.now == 100.0
    busy_until = 100.02
    give_way()
    assert time.now == pytest.approx(100.02, abs=2e-3)
    give_way()
    busy_until = time.now + 0.02  # what comes right after is waited for, too
    give_way()
    assert time.now == pytest.approx(busy_until, abs=2e-3)


@pytest.mark.parametrize("piece", [0.05, 0.1, 0.15, 0.19, 1.0, 100.0])
def test_beside_work_without_end_half_of_the_time_is_its(piece):
    """In pieces of any length, with a moment between two."""
    time = Time()
    give_way = GiveWay(lambda: time.now % (piece + 0.002) < piece, time.clock, time.sleep)
    worked = 0.0
    while time.now < 120.0:
        give_way()
        time.sleep(0.004)
        worked += 0.004
    assert 0.4 < worked / 20 < 0.6


def test_work_that_leaves_time_between_is_never_in_the_way():
    time = Time()
    give_way = GiveWay(lambda: time.now % 0.25 < 0.07, time.clock, time.sleep)
    hit = 0
    while time.now < 120.0:
        give_way()
        hit += time.now % 0.25 < 0.069
        time.sleep(0.025)
    assert hit == 0


@pytest.mark.parametrize("size", [100_000, 2_000_000])
def test_the_server_reads_measurements_when_no_predict_call_is_under_way(engine, size):
    is_over = threading.Event()
    caller = Caller("worker", None)

    async def seconds(**how):
        began = real_time.monotonic()
        assert await caller.read_in_steps(engine, lambda: at_once(lambda: "read"), size, **how) == "read"
        return real_time.monotonic() - began

    engine.readers.submit(Reading(at_once(lambda: is_over.wait(HANG_S)), 1), "another")
    assert asyncio.run(seconds(is_measured=True)) >= 0.2  # then half of the time is its
    is_over.set()
    assert not engine.heavy_readers.is_busy
    asyncio.run(seconds())
