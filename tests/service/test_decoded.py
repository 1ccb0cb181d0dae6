"""The memory of decoded bodies is estimated, bounded over all threads, and freed after an error."""

import gc
import json
import threading
import tracemalloc
import weakref

import msgspec
import pytest

from tlp_client.records import RecordParser
from tlp_service.api.answers import BodyTooLarge
from tlp_service.api.decoded import DecodeMemory, decoded_bytes, let_go
from tlp_service.api.request_memory import BodyMemory
from tlp_service.errors import QueueFull
from tlp_service.idle_memory import IdleMemory

UNITS = [
    b"1",
    b"300",
    b"1.5",
    b"{}",
    b'{"a":0}',
    b'"ab"',
    b'"a"',
    b"[]",
    b"[1]",
    b"[[[[1]]]]",
    b'["CI",1700]',
    b'"\\u20ac\\ud83d\\ude00"',
    '"€"'.encode(),
    b'{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6}',
    b'{"%d":[{}]}',
    b'["SP", 2, 0, 256, [16, 4, 1], 1]',
    b"123456789012345678901",
]


@pytest.mark.parametrize("unit", UNITS)
def test_the_estimate_is_no_less_than_what_objects_take_and_not_much_more(unit) -> None:
    body = b"[" + b",".join(unit % n if b"%d" in unit else unit for n in range(20_000)) + b"]"
    tracemalloc.start()
    document = msgspec.json.decode(body)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(document) == 20_000
    assert decoded_bytes(body) >= 0.97 * taken
    assert decoded_bytes(body) <= 5 * taken


def test_a_body_that_becomes_too_much_is_refused_with_the_setting() -> None:
    memory = DecodeMemory(1 << 20)
    expected = r"at most 1 MiB when decoded \(TLP_MAX_DECODED_MIB\), got about 3 MiB"
    with pytest.raises(BodyTooLarge, match=expected), memory.hold(b"[]," * 20_000):
        pytest.fail("it was decoded")


def test_large_bodies_are_decoded_when_others_are_done() -> None:
    memory = DecodeMemory(60 << 20)
    large = b"1," * (1 << 20)
    events: list[str] = []
    is_waiting = threading.Event()

    def decode() -> None:
        is_waiting.set()
        with memory.hold(large):
            events.append("second")

    second = threading.Thread(target=decode)
    with memory.hold(large):
        second.start()
        is_waiting.wait(60)
        with memory.hold(b"1," * 1000):  # a small one never waits
            events.append("small")
        second.join(0.2)
        events.append("first")
    second.join(60)
    assert events == ["small", "first", "second"]


def test_an_error_keeps_nothing_of_what_was_read() -> None:
    class Document(list[int]):
        pass

    left: list[weakref.ref[Document]] = []

    def read() -> None:
        document = Document()
        left.append(weakref.ref(document))
        raise ValueError("wrong")

    gc.disable()
    try:
        with pytest.raises(ValueError, match="wrong") as caught, let_go():
            read()
        assert left[0]() is None
        assert caught.value.args == ("wrong",)
    finally:
        gc.enable()


def test_large_requests_leave_room_for_small_ones() -> None:
    memory = BodyMemory(16 << 20, DecodeMemory(1))
    with memory.reserve() as first, memory.reserve() as second, memory.reserve() as small:
        first.need(11 << 20)
        with pytest.raises(QueueFull):
            second.need(5 << 20)
        small.need(3 << 20)
        small.shrink(1 << 20)
        assert memory.held == 13 << 20
    assert memory.held == 0
    with memory.reserve() as alone:
        alone.need(100 << 20)


def test_the_only_large_request_takes_nothing_that_is_for_small_ones() -> None:
    """A call of 65,536 candidates, which nobody else's may keep out, made the server refuse all others."""
    memory = BodyMemory(16 << 20, DecodeMemory(1))
    with memory.reserve() as large, memory.reserve() as small, memory.reserve() as another:
        small.need(1 << 20)
        large.need(20 << 20)
        another.need(2 << 20)
        assert not small.grow(2 << 20)
        assert not another.grow(5 << 20)
        assert small.grow(1 << 20)
        large.shrink(17 << 20)
        large.need(10 << 20)
        assert memory.held == 17 << 20
    assert memory.held == 0


def test_small_requests_are_bounded_as_well() -> None:
    memory = BodyMemory(4 << 20, DecodeMemory(1))
    with memory.reserve() as first, memory.reserve() as second:
        first.need(3 << 20)
        assert not second.grow(2 << 20)


def test_what_others_read_meanwhile_counts_for_nobody_else() -> None:
    """The event loop reads small requests while a thread reads a large one, and both fill the same caches."""

    def line(number: int) -> str:
        steps = [["PR", 1, 0, f"unroll {number} {n}"] for n in range(400)]
        return json.dumps({"i": [["[1]", "llvm"], [[], steps]], "r": [[1.0], 0, 1.0, 1], "v": "v0.6"})

    shared = RecordParser()
    mine, theirs = shared.counting(), shared.counting()
    theirs.parse(line(1))
    assert (mine.made_bytes, theirs.made_bytes > 400 * 100) == (0, True)
    mine.parse(line(2))
    assert mine.made_bytes == pytest.approx(theirs.made_bytes, rel=0.1)


def test_memory_is_given_back_when_nobody_waits_and_it_has_grown() -> None:
    sizes = iter([100 << 20, 110 << 20, 200 << 20, 200 << 20, 130 << 20, 140 << 20])
    is_busy = iter([False, True, False, False])
    memory = IdleMemory(lambda: next(is_busy), lambda: next(sizes))
    assert [memory.give_back() for _ in range(4)] == [False, False, True, False]
