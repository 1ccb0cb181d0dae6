from tlp_client.breaker import CircuitBreaker


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def opened(clock):
    breaker = CircuitBreaker(failures=3, first_pause_s=1, max_pause_s=4, clock=clock)
    for _ in range(3):
        assert breaker.allows()
        breaker.failed()
    return breaker


def test_it_opens_after_three_failures_in_a_row():
    breaker = CircuitBreaker(failures=3, clock=Clock())
    for outcome in (breaker.failed, breaker.failed, breaker.succeeded, breaker.failed, breaker.failed):
        outcome()
        assert breaker.allows()
    breaker.failed()
    assert not breaker.allows()


def test_after_the_pause_one_call_may_try():
    clock = Clock()
    breaker = opened(clock)
    clock.now = 0.9
    assert not breaker.allows()
    clock.now = 1.0
    assert breaker.allows()
    assert not breaker.allows()  # the others wait for that one


def test_a_success_closes_it():
    clock = Clock()
    breaker = opened(clock)
    clock.now = 1.0
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.allows()
    assert breaker.allows()


def test_the_pause_doubles_up_to_its_bound():
    clock = Clock()
    breaker = opened(clock)
    pauses = []
    for _ in range(4):
        asked_from = clock.now
        while not breaker.allows():
            clock.now += 0.5
        pauses.append(clock.now - asked_from)
        breaker.failed()
    assert pauses == [1, 2, 4, 4]


def test_a_try_that_never_ends_does_not_block_for_ever():
    clock = Clock()
    breaker = opened(clock)
    clock.now = 1.0
    assert breaker.allows()  # and its caller is killed
    clock.now = 2.0
    assert breaker.allows()
