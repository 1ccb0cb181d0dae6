"""Load test of the server with 1 to 64 workers, a small client among large ones, overload, and idle phases.

Reports throughput, latency, fairness and memory.

Throughput, latency, fairness and memory with 1 to 64 workers, a small caller beside large ones, overload, and idle.

The callers run beside the server, with bodies that were made before: what a worker itself needs for a call is left out.
Reads candidates that ``benchmarks/predict.py --candidates FOLDER`` left, or any tuning log of one platform kind.

    .venv/bin/python benchmarks/load.py FOLDER/0.json --out FILE
"""

import argparse
import http.client
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from provenance import write_figures
from serving import start

from tlp_client.records import split_primitives
from tlp_client.tasks import Task
from tlp_client.wire.predict import encode_predict


class Caller:
    """One worker's connection."""

    def __init__(self, server, name):
        self._http = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        self._headers = {"Content-Type": "application/json", "tlp-client": name}

    def ask(self, body, deadline_s=None, candidates=None):
        """Return (status, seconds)."""
        more = {"tlp-deadline-s": deadline_s, "tlp-candidates": candidates}
        headers = self._headers | {name: str(value) for name, value in more.items() if value is not None}
        started = time.perf_counter()
        self._http.request("POST", "/v1/predict", body, headers)
        answer = self._http.getresponse()
        answer.read()
        return answer.status, time.perf_counter() - started

    def close(self):
        self._http.close()


class Bodies:
    """Requests made of the candidates of a log."""

    def __init__(self, log):
        self._lines = log.read_text().rstrip("\n").split("\n")
        self._random = random.Random(0)

    def of(self, candidates):
        lines = self._random.choices(self._lines, k=candidates)
        return encode_predict(Task("benchmark", "llvm"), *split_primitives(lines))


def at_once(work, count):
    """Call `work` with each number in a thread of its own, and wait until all have returned."""
    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def quantile(seconds, q):
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def milliseconds(seconds):
    return {f"p{q}_ms": round(1e3 * quantile(seconds, q / 100), 2) for q in (50, 99)}


def memory(server):
    """Return MB that the server holds now, and the most that it held."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = dict(line.split(":", 1) for line in status.splitlines())
    return {
        name: int(found[key].split()[0]) // 1024 for name, key in (("rss_mb", "VmRSS"), ("most_mb", "VmHWM"))
    }


def run_workers(server, workers, body, seconds, candidates):
    """Let workers ask back to back, and return (answered, seconds) of each call by worker, and how long it took."""
    calls = [[] for _ in range(workers)]
    until = time.perf_counter() + seconds

    def work(number):
        caller = Caller(server, f"worker-{number}")
        while time.perf_counter() < until:
            calls[number].append(caller.ask(body))
        caller.close()

    started = time.perf_counter()
    at_once(work, workers)
    took = time.perf_counter() - started
    answered = [sum(status == 200 for status, _ in of_worker) for of_worker in calls]
    latencies = [s for of_worker in calls for _, s in of_worker]
    return {
        "workers": workers,
        "candidates_per_s": round(sum(answered) * candidates / took),
        **milliseconds(latencies),
        "fairness": round(min(answered) / max(answered), 2),
        "lost": len(latencies) - sum(answered),
        **memory(server),
    }


def small_beside_large(server, bodies, seconds):
    """One worker of 16 candidates alone, then beside 16 workers of 2,048."""
    small, large = bodies.of(16), bodies.of(2048)

    def ask_small(length):
        caller, latencies = Caller(server, "small"), []
        until = time.perf_counter() + length
        while time.perf_counter() < until:
            latencies.append(caller.ask(small)[1])
            time.sleep(0.05)
        caller.close()
        return latencies

    alone = ask_small(seconds / 2)
    back_to_back = run_workers(server, 1, large, seconds / 2, 2048)
    beside = []
    asking = threading.Thread(target=lambda: beside.extend(ask_small(seconds)))
    asking.start()
    loaded = run_workers(server, 16, large, seconds, 2048)
    asking.join()
    return {
        "alone": milliseconds(alone),
        "beside": milliseconds(beside),
        "p99_ratio": round(quantile(beside, 0.99) / quantile(alone, 0.99), 2),
        "throughput_ratio": round(loaded["candidates_per_s"] / back_to_back["candidates_per_s"], 3),
        "lost": loaded["lost"],
    }


def overload(server, bodies, rate, seconds, deadline_s=2.0, candidates=512, factor=3.0, workers=32):
    """Offer `factor` times what can be scored, at fixed times whatever the answers."""
    body = bodies.of(candidates)
    probe = Caller(server, "probe")
    before = statistics.median(probe.ask(body)[1] for _ in range(20))
    outcomes, lock = [], threading.Lock()
    interval = candidates / (factor * rate)
    started = time.perf_counter()
    offered = int(seconds / interval)
    upcoming = iter(range(offered))

    def work(number):
        caller = Caller(server, f"worker-{number % workers}")
        while True:
            with lock:
                turn = next(upcoming, None)
            if turn is None:
                break
            late = started + turn * interval - time.perf_counter()
            if late > 0:
                time.sleep(late)
            outcome = caller.ask(body, deadline_s, candidates)
            with lock:
                outcomes.append(outcome)
        caller.close()

    # As many as are under way at a time if each accepted one takes until its deadline.
    at_once(work, int(4 * deadline_s / interval / factor) + 32)
    took = time.perf_counter() - started
    time.sleep(1)
    after = statistics.median(probe.ask(body)[1] for _ in range(20))
    probe.close()
    accepted = [s for status, s in outcomes if status == 200]
    refused = [s for status, s in outcomes if status != 200]
    return {
        "offered_per_capacity": round(offered * candidates / took / rate, 2),
        "statuses": dict(Counter(str(status) for status, _ in outcomes)),
        "accepted_candidates_per_s": round(len(accepted) * candidates / took),
        "accepted_per_capacity": round(len(accepted) * candidates / took / rate, 2),
        "accepted_in_time": round(sum(s <= deadline_s for s in accepted) / max(1, len(accepted)), 4),
        "accepted": milliseconds(accepted),
        "refused": milliseconds(refused),
        "call_before_ms": round(1e3 * before, 2),
        "call_after_ms": round(1e3 * after, 2),
    }


def many_requests(server, bodies, count):
    """Requests of all sizes up to 256, from 8 workers; what the server holds meanwhile."""
    made = [bodies.of(n) for n in (1, 3, 16, 40, 100, 256)]
    held, lock, numbers = {}, threading.Lock(), iter(range(count))

    def work(name):
        caller = Caller(server, name)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                break
            assert caller.ask(made[number % len(made)])[0] == 200
            if number % (count // 10) == 0:
                held[number] = memory(server)["rss_mb"]
        caller.close()

    at_once(lambda n: work(f"worker-{n}"), 8)
    return {"requests": count, "rss_mb": [held[n] for n in sorted(held)], "at_the_end": memory(server)}


def idle(server, seconds):
    """CPU that the server and what it started take while nobody asks."""

    def cpu_seconds():
        total = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if str(server.process.pid) in (stat.parent.name, fields[1]):
                total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")

    before = cpu_seconds()
    time.sleep(seconds)
    return {"cpu_share": round((cpu_seconds() - before) / seconds, 4)}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=20, help="of each load; overload takes three times that"
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    bodies = Bodies(args.log)
    report = {}

    def note(name, figures):
        report[name] = figures
        print(f"{name}: {json.dumps(figures)}", flush=True)

    with tempfile.TemporaryDirectory() as scratch, start(Path(scratch, "stream")) as server:
        note("calibration", json.loads(server.get("/v1/models")[1])["models"][0]["calibration"])
        note("at start", memory(server))
        time.sleep(2)
        note("idle", idle(server, args.seconds))
        body = bodies.of(2048)
        for workers in (1, 4, 16, 64):
            note(f"{workers} workers", run_workers(server, workers, body, args.seconds, 2048))
        note("16 candidates beside 16 x 2,048", small_beside_large(server, bodies, args.seconds))
        note("many requests", many_requests(server, bodies, args.requests))
        rate = run_workers(server, 4, bodies.of(512), args.seconds / 2, 512)["candidates_per_s"]
        note("overload", overload(server, bodies, rate, 3 * args.seconds))
        note("idle again", idle(server, args.seconds))
        note("at the end", memory(server))
    if args.out:
        write_figures(args.out, report)


if __name__ == "__main__":
    main()
