"""How the benchmarks take times."""

import statistics
import time


def seconds_of(work):
    """Return the seconds that one call of `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def median_and_range(seconds):
    """Return (median, shortest, longest)."""
    return statistics.median(seconds), min(seconds), max(seconds)
