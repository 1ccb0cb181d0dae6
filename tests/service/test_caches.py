"""Every cache of client input is bounded in bytes: after ten times the bound of input, it stays within its bound."""

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from tlp_client import tasks
from tlp_client.bounded import BoundedCache, bounded_function, memory_of
from tlp_client.primitives import Primitive
from tlp_client.records import Record, RecordParser
from tlp_client.tasks import Task
from tlp_service.families.loopnest import skeleton
from tlp_service.measurements.lines import RecordLines
from tlp_service.monitoring import Metrics
from tlp_service.ranking import plausible
from tlp_service.records import reader, schema
from tlp_service.scheduling.demand import Demands
from tlp_service.scheduling.fair_queue import FairQueue
from tlp_service.scheduling.job import Job

BOUND = 1 << 20


def line_of(number: int, task: int = 0, steps: int = 40) -> str:
    """Return a record with primitives, and optionally a task, that no other record has."""
    primitives = [["SP", 2, 0, 256 + n, [16, 4, 1000 + number], 1] for n in range(steps)]
    record = {
        "i": [[f'["{task}"]', "llvm"], [[], primitives]],
        "r": [[0.1], 0, 1.0, 1700000000],
        "v": "v0.6",
    }
    return json.dumps(record)


def record_of(number: int, size: int = 1) -> Record:
    primitives = tuple(Primitive("CHR", (n, f"scope {number}" * size, (number + 500,))) for n in range(40))
    return Record(Task(f'["{number}"]', "llvm"), primitives, (0.1,), 0, 1.0, 1.0)


def parsed() -> Iterable[Callable[[int], object]]:
    parse = RecordParser(BOUND).parse
    yield lambda n: parse(line_of(n))


def parsed_tasks() -> Iterable[Callable[[int], object]]:
    parse = RecordParser(BOUND).parse
    yield lambda n: parse(line_of(0, n, 1))


def written() -> Iterable[Callable[[int], object]]:
    """Records of a log, or of a large body: never parsed by the `RecordLines` that write them."""
    line = RecordLines(BOUND).line
    yield lambda n: line(record_of(n))


def texts() -> Iterable[Callable[[int], object]]:
    of = schema.Texts(BOUND).of
    yield lambda n: of(record_of(n).primitives)


def stored() -> Iterable[Callable[[int], object]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_PRIMITIVES_BYTES", BOUND)
        read = reader._PrimitiveReader().read
        yield lambda n: read(json.dumps([["CI", 1000 * n + k] for k in range(40)], separators=(",", ":")))


def keys() -> Iterable[Callable[[int], object]]:
    call = bounded_function(BOUND)(tasks.canonical_workload_key._function)
    yield lambda n: call(json.dumps(["k" * 60_000, n]))


def targets() -> Iterable[Callable[[int], object]]:
    for function in (tasks.platform_kind, tasks.target_names):
        function.cache.clear()
    yield lambda n: (tasks.platform_kind(t := f"llvm -mcpu={n} " + "€" * 4000), tasks.target_names(t))


def shortest_times() -> Iterable[Callable[[int], object]]:
    call = bounded_function(BOUND)(plausible.min_cost_s._function)
    yield lambda n: call(json.dumps(["k" * 60_000, n]))


def skeletons() -> Iterable[Callable[[int], object]]:
    replay = skeleton._Skeletons(BOUND).replay
    yield lambda n: replay(b"%016d" % n, [Primitive("CI", (0,))])


def demands() -> Iterable[Callable[[int], object]]:
    kept = Demands(1024)
    yield lambda n: kept.add(f"{n:0128}", 1, float(n))


def clients() -> Iterable[Callable[[int], object]]:
    """Clients that come once and leave, while another one has work all the time."""
    queue: FairQueue[object] = FairQueue(1 << 40, 1 << 40, 1000.0)

    def job(name: str, size: int) -> Job:
        return Job(name, None, size, 0, 0, None, object())

    queue.offer(job("waits", 1 << 30), 0.0)
    queue.take(1, 0.0)

    def come(number: int) -> None:
        queue.offer(job(f"{number:0128}", 1000), 0.0)
        (part,), _ = queue.take(1000, 0.0)
        queue.returned(part, 0.0)

    yield come


def platforms() -> Iterable[Callable[[int], object]]:
    metrics = Metrics()
    yield lambda n: metrics.runs.labels(metrics.platform_label(f"{n:0128}"), "valid").inc()


#: Cache -> number of inputs that amount to ten times its bound, and its bound in bytes.
CACHES = {
    parsed: (10 * BOUND // 20_000, BOUND),
    parsed_tasks: (10 * BOUND // 8 // 300, BOUND // 8),
    written: (10 * BOUND // 20_000, BOUND),
    texts: (10 * BOUND // 15_000, BOUND),
    stored: (10 * BOUND // 10_000, BOUND),
    keys: (10 * BOUND // 120_000, BOUND),
    shortest_times: (10 * BOUND // 60_000, BOUND),
    targets: (10 * 2 * tasks._TARGETS_BYTES // 8_000, 2 * tasks._TARGETS_BYTES),
    skeletons: (10 * BOUND // 4_000, BOUND),
    demands: (10 * 1024, 1024 * 500),
    clients: (10 * 1024, 2 * 1024 * 500),
    platforms: (10 * 64, 64 * 3000),
}


@pytest.mark.slow
@pytest.mark.parametrize("cache", CACHES)
def test_ten_times_the_bound_leaves_the_bound(cache) -> None:
    count, bound = CACHES[cache]
    for put in cache():
        put(0)
        gc.collect()
        tracemalloc.start()
        try:
            most = 0
            for number in range(1, count):
                put(number)
                if number % max(1, count // 50) == 0:
                    most = max(most, tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        assert most <= bound + 100_000
        assert most >= bound / 8  # so the cache keeps something


def test_an_entry_larger_than_the_bound_is_not_kept() -> None:
    cache: BoundedCache[str, str] = BoundedCache(1000)
    assert cache.add("a", "b", 10) == "b"
    assert cache.add("c", "d", 10_000) == "d"
    assert cache == {"a": "b"}


def test_what_a_text_is_of_is_known_after_others_were_forgotten() -> None:
    """The cache must not return the text of another object that has the id of an oversized primitive."""
    kept = schema.Texts(4000)
    for number in range(200):
        record = record_of(number, size=1 if number % 3 else 1000)
        expected = json.dumps([p.to_json() for p in record.primitives], separators=(",", ":"))
        assert kept.of(record.primitives) == expected
        del record


@pytest.mark.slow
def test_the_memory_of_a_tuple_is_all_of_it() -> None:
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    made = [RecordParser().parse(line_of(n)).primitives for n in range(50)]
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    counted = sum(memory_of(p) for primitives in made for p in primitives)
    assert 0.95 * taken <= counted <= 1.6 * taken  # small integers are shared, but counted once per use


def test_canonical_keys_are_remembered_by_their_memory() -> None:
    cache = tasks.canonical_workload_key.cache
    for number in range(10 * tasks._KEYS_BYTES // 120_000):
        tasks.canonical_workload_key(json.dumps(["k" * 60_000, number]))
        assert cache.nbytes <= tasks._KEYS_BYTES
    held = sum(memory_of((key, value)) for key, value in cache.items())
    assert held <= cache.nbytes
    assert np.isclose(held, cache.nbytes, rtol=0.1)
