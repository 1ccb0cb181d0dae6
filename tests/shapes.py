"""Bodies and connections for a server: ordinary, large, broken and hostile ones."""

import gzip
import itertools
import json
import random
import socket
import time

JSON, NDJSON = "application/json", "application/x-ndjson"
#: Bytes of a body just below the default limit.
FULL = (32 << 20) - 1024


def predict_of(task, candidates):
    """Return the body of a predict request with distinct primitives, as clients send it."""
    numbers: dict[str, int] = {}
    indices = [[numbers.setdefault(json.dumps(p), len(numbers)) for p in c] for c in candidates]
    primitives = [json.loads(text) for text in numbers]
    document = {"format": 1, "task": task, "primitives": primitives, "candidates": indices}
    return json.dumps(document).encode()


def measurements_of(records, worker, platform):
    """Return the body of a measurement request of ``(id, record)`` pairs."""
    records = [{"id": id_, "record": record} for id_, record in records]
    document = {"format": 1, "worker": worker, "platform": platform, "records": records}
    return json.dumps(document).encode()


def record_of(primitives, cost=1e-3, at=None):
    """Return a record of a made-up task."""
    at = time.time() if at is None else at
    return {
        "i": [['["made-up", 64]', "llvm", [2, 64, 64, 0, 0, 0, 0, 0], "", 2, []], [[], primitives]],
        "r": [[cost], 0, 0.1, at],
        "v": "v0.6",
    }


def fused_splits(chance):
    """Return a candidate whose loops have many sizes each; its replay compared all pairs of them."""
    steps = []
    for _ in range(8):
        steps += [["SP", 1, 0, 16, [1, 1, 1, 1], 1], ["FU", 1, [0, 4]]]
    steps += [["FFSP", 0, 0, [2 * n] * 64, level, 1] for n in range(7) for level in range(-1, 4)]
    while len(steps) < 500:
        steps.append(["FFSP", 0, 0, [14] * 64, 0, 1])
    return [*steps, ["PR", 0, 0, f"unroll${chance.random()}"]]


def _filled(head, unit, tail, size=FULL):
    return head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail


def hostile(chance):
    """Return a hostile body as ``(name, route, body, headers)``."""
    own = str(chance.random())
    x = b'{"format":1,"x":['
    shapes = {
        "fused splits": lambda: (
            "/v1/predict",
            predict_of({"workload_key": "[]", "target": "llvm"}, [fused_splits(chance) for _ in range(8)]),
            JSON,
        ),
        "measured fused splits": lambda: (
            "/v1/measurements",
            measurements_of(
                [(own + str(n), record_of(fused_splits(chance))) for n in range(20)], "h", "epyc"
            ),
            JSON,
        ),
        "log of tasks": lambda: (
            "/v1/predict",
            b"".join(
                b'{"i":[["[\\"%b %d\\"]","llvm"],[[],[]]],"r":[[1],0,1,1],"v":"v0.6"}\n' % (own.encode(), n)
                for n in range(12_000)
            ),
            NDJSON,
        ),
        "new primitives": lambda: (
            "/v1/measurements",
            measurements_of(
                [(f"{own}-{n}", record_of([["PR", 0, 0, f"{own} {n} " + "y" * 4000]])) for n in range(1500)],
                "h",
                "epyc",
            ),
            JSON,
        ),
        "costs": lambda: (
            "/v1/measurements",
            _filled(
                b'{"format":1,"worker":"h","records":[{"id":"%b","record":{"i":[["[]","llvm"],[[],[["CI",1]]]],"r":[[1'
                % own.encode(),
                b",1",
                b'],0,1,1],"v":"v0.6"}}]}',
            ),
            JSON,
        ),
        "tiny cost": lambda: (
            "/v1/measurements",
            measurements_of([(own, record_of([["CI", 1]], cost=1e-9))], "h", "epyc"),
            JSON,
        ),
        "made-up platforms": lambda: (
            "/v1/measurements",
            measurements_of(
                [(own, record_of([["CI", 1]]))],
                f"h{chance.randrange(99)}",
                f"made-up-{chance.randrange(10**6)}",
            ),
            JSON,
        ),
        "objects": lambda: ("/v1/predict", _filled(x + b"{}", b",{}", b"]}"), JSON),
        "lists": lambda: ("/v1/predict", _filled(x + b"0", b",[]", b"]}", 12_000_000), JSON),
        "depth": lambda: ("/v1/predict", x + b"[" * 100_000 + b"]" * 100_000 + b"]}", JSON),
        "numbers of a candidate": lambda: (
            "/v1/predict",
            _filled(
                b'{"format":1,"task":{"workload_key":"[]","target":"llvm"},"candidates":[[["CI",1',
                b",1",
                b"]]]}",
            ),
            JSON,
        ),
        "gzip bomb": lambda: ("/v1/predict", gzip.compress(b" " * 200_000_000, 1), JSON),
        "endless digits": lambda: ("/v1/predict", b'{"format":1' + b"0" * 100_000 + b"}", JSON),
    }
    name = chance.choice(list(shapes))
    route, body, kind = shapes[name]()
    headers = {"Content-Type": kind, "tlp-client": f"hostile-{chance.randrange(20)}"}
    if name == "gzip bomb":
        headers["Content-Encoding"] = "gzip"
    return name, route, body, headers


def hostile_connection(chance, port, seconds):
    """Open a connection that pipelines without reading, stops within head or body, or sends nothing."""
    requests = {
        "pipeline": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        "half a head": b"POST /v1/predict HTTP/1.1\r\nHost:",
        "half a body": b"POST /v1/predict HTTP/1.1\r\nHost: x\r\n"
        b"Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{",
        "silence": b"",
    }
    kind = chance.choice(list(requests))
    end = time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", port)) as caller:
        caller.setblocking(False)
        for count in itertools.count():
            try:
                if kind == "pipeline" or count == 0:
                    caller.send(requests[kind] * (1000 if kind == "pipeline" else 1))
            except BlockingIOError:
                pass
            except OSError:
                return
            if time.monotonic() > end:
                return
            time.sleep(0.05)


def ordinary_records(lines, chance, count):
    """Return measured records as if they had been measured now."""
    records = []
    for line in chance.sample(lines, count):
        document = json.loads(line)
        document["r"][3] = time.time() + chance.random()
        records.append((f"{chance.random()}", document))
    return records


def ordinary_candidates(lines, chance, count):
    """Return the task of real records, and candidates with the same steps and other tile sizes."""
    documents = [json.loads(line) for line in lines]
    workload_key, target = documents[0]["i"][0][:2]
    same = [d["i"][1][1] for d in documents if d["i"][0][0] == workload_key]

    def varied(step):
        return [*step[:4], chance.sample(step[4], len(step[4])), step[5]] if step[0] == "SP" else step

    candidates = [[varied(step) for step in chance.choice(same)] for _ in range(count)]
    return {"workload_key": workload_key, "target": target}, candidates


def seeded(seed, *parts):
    """Return a random generator for one part of a run."""
    return random.Random(f"{seed} {parts}")
