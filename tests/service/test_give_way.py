"""Work that gives way: it waits while there is other work, and never for good."""

import pytest

from tlp_service.scheduling.give_way import GiveWay


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


def test_beside_work_without_end_half_of_the_time_is_its():
    time = Time()
    give_way = GiveWay(lambda: True, time.clock, time.sleep)
    worked = 0.0
    while time.now < 110.0:
        give_way()
        time.sleep(0.004)
        worked += 0.004
    assert worked == pytest.approx(5.0, rel=0.1)
