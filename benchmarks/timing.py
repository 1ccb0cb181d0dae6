"""How the benchmarks take times."""

import statistics
import time


def times(work, runs):
    """Return (median, shortest, longest) seconds of some runs after one to warm up."""
    work()
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds), min(seconds), max(seconds)
