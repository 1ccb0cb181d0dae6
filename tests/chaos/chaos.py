"""Workers stream records while the server, its recorder, its trainer and its Redis are killed at random.

Afterwards every record must be in the store once.

.venv/bin/python tests/chaos/chaos.py --seconds 300 --records 20000
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from serving import Server, children_of

from tlp_client.records import RecordParser
from tlp_service.records.reader import stored_records
from tlp_service.records.store import RecordStore
from tlp_service.versions.registry import Registry

MEASURED = Path(__file__).resolve().parent.parent / "data" / "measured.json"
#: Shares of the records that are sent twice, and that are no records.
DUPLICATES, CORRUPT = 0.1, 0.01
#: Seconds after the last kill until all must be done.
SETTLE_S = 900
#: Minimum number of kills, however long each restart takes.
MIN_KILLS = 4
#: New records at which the trainer makes a step.
TRAIN_RECORDS = 500


def make_records(lines, count, chance):
    """Return distinct good records as (id, line), and corrupt ones."""
    good, corrupt = [], []
    for n in range(count):
        document = json.loads(lines[n % len(lines)])
        document["r"][3] = 1_700_000_000 + n  # each was measured at a time of its own
        line = json.dumps(document)
        if chance.random() < CORRUPT:
            document["r"][0] = "fast"
            corrupt.append((f"bad-{n}", json.dumps(document)))
        else:
            good.append((f"good-{n}", line))
    return good, corrupt


def deal(good, corrupt, workers, chance):
    """Return what each worker sends: its part, some of it twice, out of order."""
    letters = [*good, *corrupt, *chance.sample(good, int(DUPLICATES * len(good)))]
    chance.shuffle(letters)
    return [letters[n::workers] for n in range(workers)]


def run(seconds, count, workers, seed, folder):
    """Return the results as a dictionary."""
    chance = random.Random(seed)
    good, corrupt = make_records(MEASURED.read_text().splitlines(), count, chance)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = folder / "data"
    settings = {"recorder": 1, "trainer": 1, "train_records": TRAIN_RECORDS}
    server = Server(sys.executable, data, port, **settings)
    processes = []
    for n, letters in enumerate(deal(good, corrupt, workers, chance)):
        path = folder / f"records{n}.jsonl"
        path.write_text("\n".join(map(json.dumps, letters)))
        command = [
            sys.executable,
            str(Path(__file__).with_name("worker.py")),
            server.url,
            path,
            folder / "outbox",
            f"w{n}",
            0.8 * seconds,
        ]
        processes.append(
            subprocess.Popen(
                list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    kills = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end or kills.total() < MIN_KILLS:
        time.sleep(chance.uniform(1, 4))
        victims = {"server": server.process.pid, **children_of(server.process.pid)}
        name = chance.choice(sorted(victims))
        kills[name] += 1
        if name == "server":
            server.kill()
            server.__exit__()
            server = Server(sys.executable, data, port, **settings)
        else:
            os.kill(victims[name], signal.SIGKILL)
    told, faults = [], []
    for process in processes:
        output, errors = process.communicate(timeout=SETTLE_S)
        told.append(json.loads(output) if process.returncode == 0 else {})
        if process.returncode or "Traceback" in errors:
            faults.append(errors[-2000:])
    deadline = time.monotonic() + SETTLE_S
    while server.metric("tlp_measurement_stream_length") != 0 and time.monotonic() < deadline:
        time.sleep(0.2)
    left = server.metric("tlp_measurement_stream_length")
    server.__exit__()
    journal = Registry(data / "models").journal()
    total = sum(map(Counter, told), Counter())
    stored = Counter(record.timestamp for _, record in stored_records(RecordStore(data / "records")))
    parser = RecordParser()
    expected = Counter(parser.parse(line).timestamp for _, line in good)
    return {
        "kills": dict(kills),
        "records": len(good),
        "corrupt": len(corrupt),
        "acknowledged": total["acknowledged"],
        "rejected": total["rejected"],
        "dropped": total["dropped"],
        "predict_answered": total["answered"],
        "predict_fell_back": total["fell_back"],
        "slowest_put_s": max((t.get("slowest_put_s", 0) for t in told), default=0),
        "stored_once": sum(n == 1 for n in stored.values()),
        "stored_twice": sum(n > 1 for n in stored.values()),
        "lost": sum((expected - stored).values()),
        "unexpected": sum((stored - expected).values()),
        "left_in_stream": left,
        "versions_that_served": len({step.version for step in journal.history}),
        "versions_rejected": sum(mark.state == "rejected" for mark in journal.marks.values()),
        "versions_failed": sum(mark.state == "failed" for mark in journal.marks.values()),
        "worker_faults": faults,
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        happened = run(arguments.seconds, arguments.records, arguments.workers, arguments.seed, Path(folder))
    print(json.dumps(happened, indent=1))
    return 1 if happened["lost"] or happened["stored_twice"] or happened["worker_faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
