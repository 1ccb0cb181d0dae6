"""Hours of mixed load on one server.

Its memory must level off, and ordinary calls must stay as fast as without the other load.

    .venv/bin/python tests/chaos/soak.py --seconds 7200 --out soak.json

First comes the ordinary part alone: calls of 2,048 candidates, logs, measurements, scrapes, swaps, and a trainer. Its
p99 is the base value. Then large, broken and hostile bodies and connections join. Each minute is a line: memory of each
process, ordinary calls, their p99 and maximum. The exit status is 1 when a bar is missed.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from pathlib import Path

import urllib3

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import shapes
from mutations import damaged_bytes
from serving import Server, children_of

from tlp_service.settings import shipped_model

LINES = (Path(__file__).resolve().parent.parent / "data" / "measured.json").read_text().splitlines()
GOOD = [line for line in LINES if json.loads(line)["r"][1] == 0]
KEY = "soak"
#: Limits: memory of the server, growth of a process in the second half, ratio of p99 to its base value, longest call.
MAX_SERVER_MB, MAX_GROWTH, MAX_RATIO, MAX_CALL_S = 450, 1.1, 3.0, 2.0
#: Candidates of an ordinary and of a large call.
ORDINARY, LARGE = 2048, 30_000
#: Seconds between two ordinary calls: about 200 per minute, enough for a p99.
PACE_S = 0.25
#: Seconds that a caller waits before it counts the call as lost.
LOST_S = 60


class Load:
    """The callers, one thread each, and their results."""

    def __init__(self, server, seed):
        self.server, self.seed = server, seed
        self.is_over = threading.Event()
        self.calls = []  # (when it ended, seconds, status) of the ordinary ones
        self.call_began = None  # of the ordinary call in progress
        self.statuses = defaultdict(Counter)
        self.faults = []
        self._threads = []
        self._http = urllib3.PoolManager(retries=False, maxsize=20)

    def start(self, name, act, pace_s, copies=1):
        for copy in range(copies):
            chance = shapes.seeded(self.seed, name, copy)
            thread = threading.Thread(target=self._run, args=(name, act, pace_s, chance), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self):
        self.is_over.set()
        for thread in self._threads:
            thread.join(2 * LOST_S)

    def send(self, name, method, route, body=None, headers=None):
        try:
            answer = self._http.request(
                method, self.server.url + route, body=body, headers=headers or {}, timeout=LOST_S
            )
        except urllib3.exceptions.HTTPError as error:
            status = type(error).__name__
        else:
            status = answer.status
            if status >= 500 and status != 503:
                self.faults.append(f"{name}: {status} {answer.data[:200]!r}")
        self.statuses[name][status] += 1
        return status

    def _run(self, name, act, pace_s, chance):
        while not self.is_over.is_set():
            began = time.monotonic()
            try:
                act(chance)
            except OSError as error:  # a lost server is a result, and does not end the run
                self.statuses[name][type(error).__name__] += 1
            except Exception:  # noqa: BLE001  the other callers go on in any case
                self.faults.append(f"{name}: {traceback.format_exc()[-1500:]}")
            self.is_over.wait(max(0.0, began + pace_s - time.monotonic()))


def ordinary_part(load):
    """Start the ordinary callers."""
    bodies = []
    for number in range(8):
        chance = shapes.seeded(load.seed, "ordinary", number)
        bodies.append(shapes.predict_of(*shapes.ordinary_candidates(GOOD, chance, ORDINARY)))
    log = "\n".join(LINES).encode()

    def call(chance):
        load.call_began = began = time.monotonic()
        headers = {"Content-Type": shapes.JSON, "tlp-client": "ordinary"}
        status = load.send("ordinary", "POST", "/v1/predict", chance.choice(bodies), headers)
        load.call_began, ended = None, time.monotonic()
        load.calls.append((ended, ended - began, status))

    def measure(chance):
        worker = f"w{chance.randrange(8)}"
        body = shapes.measurements_of(shapes.ordinary_records(GOOD, chance, 16), worker, "epyc")
        load.send("measurements", "POST", "/v1/measurements", body, {"Content-Type": shapes.JSON})

    def score_log(chance):
        load.send("logs", "POST", "/v1/predict", log, {"Content-Type": shapes.NDJSON, "tlp-client": "logs"})

    def scrape(chance):
        for route in ("/metrics", "/v1/quality", "/health/ready", "/v1/models"):
            load.send(f"scrapes {route}", "GET", route)

    names = [shipped_model("published").name, shipped_model().name]

    def swap(chance):
        names.reverse()
        headers = {"Content-Type": shapes.JSON, "Authorization": f"Bearer {KEY}"}
        body = json.dumps({"version": names[0]}).encode()
        load.send("swaps", "POST", "/v1/registry/activate", body, headers)

    load.start("ordinary", call, PACE_S)
    load.start("measurements", measure, 1.0)
    load.start("logs", score_log, 5.0)
    load.start("scrapes", scrape, 5.0)
    load.start("swaps", swap, 45.0)


def other_part(load):
    """Start the large, broken and hostile callers."""
    chance = shapes.seeded(load.seed, "large")
    large = shapes.predict_of(*shapes.ordinary_candidates(GOOD, chance, LARGE))
    whole = [
        shapes.predict_of(*shapes.ordinary_candidates(GOOD, chance, 200)),
        shapes.measurements_of(shapes.ordinary_records(GOOD, chance, 20), "broken", "epyc"),
        "\n".join(LINES[:50]).encode(),
    ]

    def ask_much(chance):
        headers = {"Content-Type": shapes.JSON, "tlp-client": "large"}
        load.send("large", "POST", "/v1/predict", large, headers)

    def break_one(chance):
        route = chance.choice(["/v1/predict", "/v1/measurements?worker=broken"])
        kind = chance.choice([shapes.JSON, shapes.NDJSON])
        body = damaged_bytes(chance, chance.choice(whole))
        load.send("broken", "POST", route, body, {"Content-Type": kind, "tlp-client": "broken"})

    def hurt(chance):
        name, route, body, headers = shapes.hostile(chance)
        load.send(f"hostile, {name}", "POST", route, body, headers)

    def hold(chance):
        shapes.hostile_connection(chance, load.server.port, 10)

    load.start("large", ask_much, 5.0)
    load.start("broken", break_one, 0.2, copies=2)
    load.start("hostile", hurt, 2.0, copies=2)
    load.start("connections", hold, 1.0, copies=8)


def rss_mb(pid):
    """Return the resident memory of a process, or None if it has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return None
    return round(int(pages) * 4096 / 1e6, 1)


def sample(load, begin, end):
    """Return the figures of a minute."""
    pids = {"server": load.server.process.pid, **children_of(load.server.process.pid)}
    memory = {name: mb for name, pid in sorted(pids.items()) if (mb := rss_mb(pid)) is not None}
    of_it = [call for call in load.calls if begin <= call[0] < end]
    seconds = sorted(s for _, s, _ in of_it)
    if load.call_began is not None and not seconds:
        seconds = [end - load.call_began]  # a call without an answer in all this time
    return {
        "memory_mb": memory,
        "calls": len(of_it),
        "failed": dict(Counter(str(status) for *_, status in of_it if status != 200)),
        "p99_s": round(p99_of(seconds), 4) if seconds else None,
        "max_s": round(max(seconds, default=0.0), 4),
    }


def p99_of(seconds):
    """Return the 99th percentile of sorted values."""
    return seconds[min(len(seconds) - 1, round(0.99 * (len(seconds) - 1)))]


def watch(load, seconds, every_s, phase):
    """Sample for `seconds`, print one line per minute, and return the samples."""
    samples, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        load.is_over.wait(min(every_s, end - begin))
        found = sample(load, begin, time.monotonic())
        samples.append(found)
        memory = "  ".join(f"{name} {mb:.0f}" for name, mb in found["memory_mb"].items())
        p99 = "-" if found["p99_s"] is None else f"{found['p99_s']:.3f}"
        print(
            f"{phase} {len(samples):4}  p99 {p99} s  max {found['max_s']:.3f} s  calls {found['calls']}  failed "
            f"{found['failed'] or 0}  MB: {memory}",
            flush=True,
        )
    return samples


def growth_of(samples, name):
    """Return the median memory of the last quarter over that of the second quarter.

    A sample may come in the middle of a large body, so the largest of a quarter says nothing about growth; it has a bar
    of its own.
    """
    values = [s["memory_mb"][name] for s in samples if name in s["memory_mb"]]
    quarter = len(values) // 4
    return (
        statistics.median(values[-quarter:]) / statistics.median(values[quarter : 2 * quarter])
        if quarter
        else None
    )


def judge(base, mixed, base_p99):
    """Return the verdict on each bar: name -> (value, limit, whether it holds).

    Parameters
    ----------
    base_p99 : float
        Of all ordinary calls of the ordinary part alone. Not that of a minute: two versions of different speed take
        turns.
    """
    p99s = [s["p99_s"] for s in mixed if s["p99_s"] is not None] or [float("inf")]
    names = sorted({name for s in mixed for name in s["memory_mb"]})
    bars = {f"growth of {name}": (growth_of(mixed, name), MAX_GROWTH) for name in names}
    bars["memory of the server, MB"] = (
        max(s["memory_mb"].get("server", 0) for s in base + mixed),
        MAX_SERVER_MB,
    )
    bars["p99 of a minute over that of the ordinary part"] = (max(p99s) / base_p99, MAX_RATIO)
    bars["longest ordinary call, s"] = (max(s["max_s"] for s in mixed), MAX_CALL_S)
    bars["ordinary calls that failed"] = (sum(sum(s["failed"].values()) for s in base + mixed), 0)
    return {
        name: (value if value is None else round(value, 3), limit, value is not None and value <= limit)
        for name, (value, limit) in bars.items()
    }


def run(seconds, base_seconds, every_s, seed, folder):
    """Return the results as a dictionary."""
    settings = {"recorder": 1, "trainer": 1, "train_records": 2000, "admin_key": KEY}
    with Server(sys.executable, folder / "data", **settings) as server:
        load = Load(server, seed)
        publish(server, folder)
        ordinary_part(load)
        try:
            watch(load, min(30, base_seconds / 2), every_s, "warm-up ")
            began = time.monotonic()
            base = watch(load, base_seconds, every_s, "ordinary")
            base_p99 = p99_of(sorted(s for end, s, _ in load.calls if end >= began))
            other_part(load)
            mixed = watch(load, seconds, every_s, "mixed   ")
        finally:
            load.stop()
        status = server.process.poll()
        server_faults = server.log.count("Traceback")
    return {
        "seed": seed,
        "base_p99_s": base_p99,
        "verdict": judge(base, mixed, base_p99),
        "base": base,
        "mixed": mixed,
        "statuses": {name: {str(k): n for k, n in found.items()} for name, found in load.statuses.items()},
        "faults": load.faults[:100],
        "ended_with": status,
        "tracebacks_in_log": server_faults,
    }


def publish(server, folder):
    """Publish a second version for the swaps."""
    from tlp_service.versions.registry import Registry

    Registry(folder / "data" / "models").publish(shipped_model("published"))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=7200, help="of the mixed load")
    parser.add_argument("--base-seconds", type=float, default=300, help="of the ordinary part alone")
    parser.add_argument("--every", type=float, default=60, help="seconds of a sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file that gets all figures as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(arguments.seconds, arguments.base_seconds, arguments.every, arguments.seed, Path(folder))
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    for name, statuses in sorted(found["statuses"].items()):
        print(f"{name}: {statuses}")
    for fault in found["faults"]:
        print(f"fault: {fault}")
    print(f"seed {found['seed']}, tracebacks in the server's log: {found['tracebacks_in_log']}")
    for name, (value, limit, holds) in found["verdict"].items():
        print(f"{'held  ' if holds else 'MISSED'} {name}: {value} (at most {limit})")
    is_held = all(holds for *_, holds in found["verdict"].values())
    return 0 if is_held and not found["faults"] and found["ended_with"] is None else 1


if __name__ == "__main__":
    sys.exit(main())
