"""Measurements at a fixed rate beside predict calls, without and with a trainer.

What is acknowledged and stored, and p99 of predict over its idle value.

One worker asks for scores at a fixed rate throughout. Phases take turns, so that what else the machine does falls on
all of them: idle; ingest (workers post batches of measured records, offered at a fixed rate whatever the answers);
trainer; both. The trainer is a process of its own that is stopped between its phases, and has work whenever it runs.
After each ingest the recorder gets the time that it needs, which is printed. At the end, the most that is acknowledged
without pacing. The workers run beside the server, with bodies that were made before.

    .venv/bin/python benchmarks/ingest.py --out FILE
"""

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import redis
from load import Bodies, Caller, at_once, milliseconds, quantile
from provenance import write_figures
from serving import start

from tlp_client.wire.measurements import encode_measurements
from tlp_service.learning.standings import REFUSED, TRAINED
from tlp_service.measurements.embedded import embedded_redis
from tlp_service.records.store import RecordStore

LOG = Path(__file__).resolve().parents[1] / "tests" / "data" / "measured.json"
PHASES = ("idle", "ingest", "trainer", "both")
PLATFORM = "epyc-9004-2c"

#: Stands where each request has its own number, which makes its records and their ids new.
NUMBER = b"@" * 10
FIRST_NUMBER = 1_700_000_000
#: Requests that were made before; each is sent again and again, with other numbers.
TEMPLATES = 32


def make_templates(log, batch, version):
    """Return bodies of measurement requests of records of a log, all alike but for time stamps and ids."""
    lines, chosen = log.read_text().splitlines(), random.Random(0)
    templates = []
    for template in range(TEMPLATES):
        records = []
        for place, line in enumerate(chosen.choices(lines, k=batch)):
            record = json.loads(line)
            record["r"][2] = round(0.1 + place / 1e6, 6)  # a line that comes twice is two records
            record["r"][3] = "TIME"
            text = json.dumps(record).replace('"TIME"', NUMBER.decode())
            records.append((f"sha256:{template:027d}{place:027d}{NUMBER.decode()}", text))
        body = encode_measurements(records, worker="worker", platform=PLATFORM, version=version)
        templates.append(body)
    return templates


class Senders:
    """Workers in a process of their own that post batches, at fixed times or as fast as they are answered."""

    def __init__(self, port, templates, batch, rate, seconds, workers, first):
        self._answers, answers = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.Process(
            target=_send, args=(port, templates, batch, rate, seconds, workers, first, answers)
        )
        self.process.start()

    def figures(self):
        """Wait for the end, and return acknowledged records, records a second and latency."""
        found = self._answers.recv()
        self.process.join()
        return found


def _send(port, templates, batch, rate, seconds, workers, first, answers):
    latencies, accepted, others, lock = [], [], [], threading.Lock()
    upcoming = iter(range(int(seconds * rate / batch) if rate else sys.maxsize))
    started = time.perf_counter()

    def work(worker):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        headers = {"Content-Type": "application/json", "tlp-client": f"sender-{worker}"}
        while rate or time.perf_counter() < started + seconds:
            with lock:
                turn = next(upcoming, None)
            if turn is None:
                break
            if rate and (early := started + turn * batch / rate - time.perf_counter()) > 0:
                time.sleep(early)
            body = templates[turn % len(templates)].replace(NUMBER, b"%d" % (first + turn))
            sent = time.perf_counter()
            connection.request("POST", "/v1/measurements", body, headers)
            answer = connection.getresponse()
            document = json.loads(answer.read())
            latencies.append(time.perf_counter() - sent)
            accepted.append(document.get("accepted", 0))
            if answer.status != 200 or document["accepted"] != batch:
                others.append((answer.status, document))
        connection.close()

    at_once(work, workers)
    took = time.perf_counter() - started
    for other in others[:3]:
        print(other)
    answers.send(
        {
            "requests": len(latencies),
            "accepted": sum(accepted),
            "records_per_s": round(sum(accepted) / took),
            "not_all_accepted": len(others),
            **milliseconds(latencies),
        }
    )


def ask(server, body, per_second, seconds):
    """Let one worker ask at fixed times, and return the seconds of each call."""
    caller, latencies = Caller(server, "asker"), []
    started = time.perf_counter()
    for turn in range(int(seconds * per_second)):
        if (early := started + turn / per_second - time.perf_counter()) > 0:
            time.sleep(early)
        status, took = caller.ask(body)
        assert status == 200, status
        latencies.append(took)
    caller.close()
    return latencies


class Trainer:
    """A trainer that has work whenever it runs, and runs while the context lasts."""

    def __init__(self, data_dir, url):
        told = {"TLP_REDIS_URL": url, "TLP_DATA_DIR": str(data_dir), "TLP_TRAIN_RECORDS": "1"}
        self._url = url
        self._log = data_dir.with_name("trainer.log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tlp_service", "trainer"],
            env={**os.environ, **told},
            stderr=self._log,
            start_new_session=True,  # as a server starts it
        )
        # Until it has lowered its priority; torch it loads in its first step.
        while os.getpriority(os.PRIO_PROCESS, self.process.pid) == os.getpriority(os.PRIO_PROCESS, 0):
            time.sleep(0.1)
        self.process.send_signal(signal.SIGSTOP)

    def __enter__(self):
        self._is_over = threading.Event()
        self._feeder = threading.Thread(target=self._feed)
        self._feeder.start()
        self.process.send_signal(signal.SIGCONT)

    def __exit__(self, *exception):
        self.process.send_signal(signal.SIGSTOP)
        self._is_over.set()
        self._feeder.join()

    def _feed(self):
        """Forget what was learned from, so that all records are new."""
        with redis.Redis.from_url(self._url) as client:
            while not self._is_over.wait(1):
                client.delete(TRAINED, REFUSED)

    def end(self):
        self.process.kill()
        self.process.wait()
        self._log.close()


def children(pid):
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {int(child) for task in tasks for child in (task / "children").read_text().split()}


class Cpu:
    """CPUs that each process keeps busy, the callers, and all else on this machine."""

    def __init__(self, **pids):
        self._pids = pids
        self._before, self._began = self._seconds(), time.perf_counter()

    def shares(self):
        took = time.perf_counter() - self._began
        return {name: round((now - self._before[name]) / took, 2) for name, now in self._seconds().items()}

    def _seconds(self):
        tick = os.sysconf("SC_CLK_TCK")
        found = {}
        for name, pid in self._pids.items():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[name] = (int(fields[11]) + int(fields[12])) / tick
        found["callers"] = sum(os.times()[:4])
        user, nice, system, _, _, *interrupts = map(
            int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        )
        found["others"] = (user + nice + system + sum(interrupts)) / tick - sum(found.values())
        return found


class Bench:
    """The processes, and phases among them."""

    def __init__(self, args, server, trainer):
        self._args = args
        self._server = server
        self._trainer = trainer
        version = json.loads(server.get("/v1/models")[1])["models"][0]["version"]
        self._templates = make_templates(args.log, args.batch, version)
        self._body = Bodies(args.log).of(args.candidates)
        self._next = FIRST_NUMBER
        self.accepted = 0
        (recorder,) = children(server.process.pid)
        pids = {"server": server.process.pid, "recorder": recorder, "trainer": trainer.process.pid}
        (stream,) = children(os.getpid()) - set(pids.values())
        self._pids = {**pids, "stream": stream}

    def phase(self, name, seconds, rate, is_asking=True):
        """Return the seconds of the predict calls, and the figures, of one phase."""
        latencies, figures = [], {}
        with contextlib.ExitStack() as stack:
            if name in ("trainer", "both"):
                stack.enter_context(self._trainer)
            cpu = Cpu(**self._pids)
            if name in ("ingest", "both"):
                senders = self._send(rate, seconds)
            if is_asking:
                latencies = ask(self._server, self._body, self._args.asks, seconds)
            if name in ("ingest", "both"):
                figures = senders.figures()
                self.accepted += figures["accepted"]
                self._next += figures["requests"]
            figures["cpus"] = cpu.shares()
        if name in ("ingest", "both"):
            figures |= self._catch_up()
        return latencies, figures

    def _send(self, rate, seconds):
        args = self._args
        return Senders(
            self._server.port, self._templates, args.batch, rate, seconds, args.workers, self._next
        )

    def _catch_up(self):
        """Wait until the recorder has stored all, and return how much it was behind."""
        behind = self._server.metric("tlp_measurement_stream_length")
        began = time.perf_counter()
        while self._server.metric("tlp_measurement_stream_length"):
            time.sleep(0.1)
        return {"behind": int(behind), "behind_s": round(time.perf_counter() - began, 1)}


def measure(args, bench, note):
    latencies = defaultdict(list)
    by_phase = defaultdict(list)
    bench.phase("idle", args.seconds / 2, 0)  # until all that grows by itself has grown
    bench.phase("ingest", args.seconds / 4, args.rate)
    for turn in range(args.rounds):
        for name in args.phases:
            seconds, figures = bench.phase(name, args.seconds, args.rate)
            latencies[name] += seconds
            by_phase[name].append(figures)
            note(f"{name} {turn}", {"predict": milliseconds(seconds), **figures})
    idle = quantile(latencies["idle"], 0.99)
    for name in args.phases:
        figures = {
            "predict": milliseconds(latencies[name]),
            "p99_to_idle": round(quantile(latencies[name], 0.99) / idle, 2),
        }
        if name in ("ingest", "both"):
            figures["records_per_s"] = [f["records_per_s"] for f in by_phase[name]]
        note(name, figures)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--log", type=Path, default=LOG, help="records that are asked for and measured")
    add(
        "--rate",
        type=float,
        default=5000,
        help="records a second that are offered; 0 for as many as are taken",
    )
    add("--batch", type=int, default=128, help="records a request")
    add("--workers", type=int, default=8, help="that post records")
    add("--candidates", type=int, default=2048, help="of a predict call")
    add("--asks", type=float, default=4, help="predict calls a second")
    add("--seconds", type=float, default=20, help="of each phase")
    add("--rounds", type=int, default=5)
    add("--phases", nargs="+", choices=PHASES, default=PHASES)
    add("--out", type=Path)
    args = parser.parse_args()
    report = {}

    def note(name, figures):
        report[name] = figures
        print(f"{name}: {json.dumps(figures)}", flush=True)

    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(embedded_redis(scratch / "stream"))
        data_dir = scratch / "data"
        server = stack.enter_context(start(data_dir, redis_url=url, recorder=1))
        trainer = Trainer(data_dir, url)
        stack.callback(trainer.end)
        bench = Bench(args, server, trainer)
        measure(args, bench, note)
        _, most = bench.phase("ingest", args.seconds, 0, is_asking=False)
        note("most", most)
        stored = sum(RecordStore(data_dir / "records").counts().values())
        note("kept", {"acknowledged": bench.accepted, "stored": stored})
    if args.out:
        write_figures(args.out, report)


if __name__ == "__main__":
    main()
