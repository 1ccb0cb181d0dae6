"""A tuning worker without TVM.

Streams records through the client's outbox, asks for scores meanwhile, and reports the outcome of both.

    python worker.py URL RECORDS.jsonl OUTBOX_FOLDER NAME SECONDS

Each line of RECORDS is ``[id, line]``; the worker puts them into the outbox over SECONDS. It ends only when every
record is acknowledged or refused and one predict call has been answered, however often the service is away.
"""

import json
import sys
import time
from pathlib import Path

from tlp_client.connection import Connection, Round
from tlp_client.errors import ServiceError
from tlp_client.outbox import Outbox
from tlp_client.spool import Spool
from tlp_client.tasks import Task

BATCH = 25
STEPS = ['["CI", 1]', '["SP", 2, 0, 256, [16, 4, 1], 1]', '["AN", 2, 3, 2]']


def main(url, records, folder, name, seconds):
    letters = [tuple(json.loads(line)) for line in Path(records).read_text().splitlines()]
    connection = Connection(url, platform="epyc", client=name, deadline_s=10.0)
    outbox = Outbox(connection, name, spool=Spool(Path(folder), url, "epyc"), max_pause_s=1.0)
    told = {"answered": 0, "fell_back": 0, "slowest_put_s": 0.0}
    waiting = letters
    pause_s = float(seconds) * BATCH / len(letters)
    while waiting or outbox.waiting or not told["answered"]:
        batch, waiting = waiting[:BATCH], waiting[BATCH:]
        started = time.monotonic()
        outbox.put(batch, None)  # empty if only the predict answer is missing
        told["slowest_put_s"] = max(told["slowest_put_s"], time.monotonic() - started)
        try:
            answer = connection.predict(Task('["w"]', "llvm", None), STEPS, [[0, 1], [1, 2], [2]], Round())
            assert len(answer.scores) == 3
            told["answered"] += 1
        except ServiceError:
            told["fell_back"] += 1
        time.sleep(pause_s)
    told |= {name: getattr(outbox, name) for name in ("acknowledged", "rejected", "dropped")}
    outbox.close()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
