"""How this machine scores fastest, from a short measurement at start."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tlp_service.families.lookup import family_named
from tlp_service.inference.inputs import Inputs
from tlp_service.inference.network import Device, OnnxNetwork
from tlp_service.inference.work import ScoringWork
from tlp_service.scheduling.executor import Executor
from tlp_service.scheduling.fair_queue import FairQueue
from tlp_service.versions.manifest import Network

log = logging.getLogger(__name__)

#: Candidates a batch that are tried. A CPU is fastest while the activations stay in its cache, a GPU with many at a time.
_CHUNKS: dict[Device, tuple[int, ...]] = {"cpu": (16, 32, 64, 128), "cuda": (512, 2048, 8192)}

#: The smallest chunk is taken that is at most so much slower than the best: others wait less for it.
_WORTH = 0.95

#: Batches that may be scored at a time; each costs Python some time that no other can use.
_MAX_EXECUTORS = 16

#: Seconds after which nothing else is tried.
_PATIENCE_S = 2.0

_PROBE_CANDIDATES: dict[Device, int] = {"cpu": 512, "cuda": 32768}


@dataclass(frozen=True, slots=True)
class Calibration:
    """How batches are scored.

    Parameters
    ----------
    executors : int
        Batches that are scored at a time.
    threads : int
        Threads that share the work of one batch.
    chunk : int
        Most candidates of a batch.
    precision : {"fp32"}
        Of the network's arithmetic.
    candidates_per_s : float
        What was measured with these.
    """

    executors: int
    threads: int
    chunk: int
    precision: str
    candidates_per_s: float


def calibrate(folder: Path, probed: Network, device: Device, cpus: int, chunk: int = 0) -> Calibration:
    """Measure some settings with candidates made up for it, and return the best.

    Parameters
    ----------
    folder : Path
        Folder of the version.
    probed : Network
        Which of its networks is measured.
    cpus : int
        Threads that there may be in all.
    chunk : int
        Candidates a batch; 0 to choose.
    """
    chunks = (chunk,) if chunk else _CHUNKS[device]
    inputs = family_named(probed.features).probe(probed, _PROBE_CANDIDATES[device])
    tried: dict[int, Calibration] = {}
    until = time.monotonic() + _PATIENCE_S
    for executors, threads in _divisions(device, cpus):
        network = OnnxNetwork(folder / probed.file, device, threads)
        for size in chunks:
            if tried and time.monotonic() > until:
                break
            rate = _measure(network, inputs, executors, size)
            log.debug(
                "%d executors of %d threads, chunk %d: %.0f candidates/s", executors, threads, size, rate
            )
            if size not in tried or rate > tried[size].candidates_per_s:
                tried[size] = Calibration(executors, threads, size, "fp32", rate)
    best = max(of_size.candidates_per_s for of_size in tried.values())
    return next(c for size, c in sorted(tried.items()) if c.candidates_per_s >= _WORTH * best)


def _divisions(device: Device, cpus: int) -> Iterator[tuple[int, int]]:
    """Yield (executors, threads of each) to try."""
    if device == "cuda":
        yield 1, 1  # one stream
        return
    threads = 1
    while threads < cpus:
        if cpus // threads <= _MAX_EXECUTORS:
            yield cpus // threads, threads
        threads *= 2
    yield 1, cpus


def _measure(network: OnnxNetwork, inputs: Inputs, executors: int, chunk: int) -> float:
    """Return candidates a second; the better of two, for whatever disturbs makes it slower."""
    queue: FairQueue[ScoringWork] = FairQueue(sys.maxsize, sys.maxsize, rate=1.0)
    executor = Executor(queue, executors, chunk)
    try:
        times = []
        for _ in range(3):
            started = time.perf_counter()
            work = ScoringWork(network, inputs.table, inputs.plan)
            executor.submit(work, "calibration")
            work.future.result()
            times.append(time.perf_counter() - started)
    finally:
        executor.close()
    return inputs.plan.candidates / min(times[1:])
