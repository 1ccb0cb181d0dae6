"""Feeds mutated inputs to all parsers and to a running server, and runs schemathesis on its OpenAPI document.

    .venv/bin/python tests/fuzz/fuzz.py parsers --count 100000 --seed 0
    .venv/bin/python tests/fuzz/fuzz.py sockets --count 10000
    .venv/bin/python tests/fuzz/fuzz.py openapi --schemathesis .venv-fuzz/bin/schemathesis

Each prints its seed, how many inputs there were and what became of them. The exit status is 1 when something was wrong.
"""

import argparse
import logging
import random
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import mutations
import shapes
from parsers import DATA, parsers
from serving import HANG_S, Server

#: Mutated inputs between two checks with a valid request.
CHECK_EVERY = 50


def fuzz_parsers(count, seed, folder, report=print, only=None):
    """Return the faults: inputs for which a parser raised an undocumented exception."""
    found = [parser for parser in parsers(folder) if only in (None, parser.name)]
    weights, outcomes, faults, places = [p.weight for p in found], Counter(), [], Counter()
    chance = random.Random(seed)
    for parser in found:  # the undamaged inputs must be valid, or the test would check nothing
        sound = parser.inputs[0]
        parser.read((sound, sound) if parser.name == "scores beside it" else sound)
    for number in range(count):
        parser = chance.choices(found, weights)[0]
        damaged = parser.damage(chance, chance.choice(parser.inputs))
        try:
            parser.read(damaged)
            outcomes[parser.name, "read"] += 1
        except parser.errors:
            outcomes[parser.name, "refused"] += 1
        except Exception as error:  # noqa: BLE001  any other exception is a fault
            outcomes[parser.name, "FAULT"] += 1
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{parser.name}: {type(error).__name__} at {frame.filename}:{frame.lineno}"
            places[place] += 1
            if places[place] <= 3:
                faults.append(f"{place}, input {number}: {str(error)[:300]}; {damaged!r:.1500}")
    for (name, outcome), times in sorted(outcomes.items()):
        report(f"{name:20} {outcome:8} {times}")
    for place, times in places.items():
        report(f"{times} times {place}")
    return faults


def fuzz_sockets(count, seed, folder, report=print):
    """Return the faults of a server that gets mutated bodies.

    A fault is a 5xx, a lost server, a changed score of a valid request.
    """
    chance = random.Random(seed)
    lines = (DATA / "measured.json").read_text().splitlines()
    sound = shapes.predict_of(*shapes.ordinary_candidates(lines, chance, 200))
    bodies = [
        ("/v1/predict", shapes.predict_of(*shapes.ordinary_candidates(lines, chance, 20)), shapes.JSON),
        ("/v1/predict?platform=epyc-9004-2c", "\n".join(lines[:20]).encode(), shapes.NDJSON),
        ("/v1/measurements?worker=w&platform=epyc", "\n".join(lines[20:30]).encode(), shapes.NDJSON),
        ("/v1/measurements", shapes.measurements_of(shapes.ordinary_records(lines, chance, 5), "w", "epyc"),
            shapes.JSON),
    ]  # fmt: skip
    faults, statuses = [], Counter()
    with Server(sys.executable, folder / "data", recorder=1, admin_key="key") as server:
        _, expected = server.post("/v1/predict", sound)
        for number in range(count):
            route, whole, kind = chance.choice(bodies)
            damage = mutations.damaged_json if kind == shapes.JSON else mutations.damaged_bytes
            body = damage(chance, whole)
            headers = {"Content-Type": kind}
            if chance.random() < 0.1:
                headers["Content-Encoding"] = "gzip"
            if chance.random() < 0.1:
                headers[chance.choice(["tlp-client", "tlp-cached", "tlp-deadline-s", "tlp-candidates"])] = (
                    chance.choice(["", "x" * 300, "-1", "nan", "1e999", "9" * 400, "0x1", "1 2"])
                )
            try:
                status, _, answer = server.request("POST", route, body, headers, timeout=HANG_S)
            except OSError as error:
                faults.append(f"input {number}: no answer: {error}; {body!r:.600}")
                continue
            statuses[status] += 1
            if status >= 500 and status not in (503, 504):
                faults.append(f"input {number}: {status} {answer!r:.200}; {headers} {body!r:.600}")
            if number % CHECK_EVERY == CHECK_EVERY - 1:
                status, answer = server.post("/v1/predict", sound)
                if (status, answer.get("scores")) != (200, expected["scores"]):
                    faults.append(f"after input {number}: the sound request is {status} with other scores")
        if server.process.poll() is not None:
            faults.append(f"the server ended with {server.process.poll()}")
        if server.log.count("Traceback"):
            faults.append(f"tracebacks in the log of the server: {server.log[-3000:]}")
    report(f"statuses: {dict(sorted(statuses.items()))}")
    return faults


def fuzz_openapi(program, seed, folder):
    """Run schemathesis, from an environment of its own, on a server, and return the faults that it finds."""
    with Server(sys.executable, folder / "data", recorder=1, admin_key="key") as server:
        command = [
            program,
            "run",
            f"{server.url}/openapi.json",
            "--checks",
            "not_a_server_error",
            "--seed",
            str(seed),
            "--header",
            "Authorization: Bearer key",
            "--no-color",
        ]
        status = subprocess.run(command, check=False, cwd=folder).returncode
        alive = server.process.poll() is None and server.get("/health/live")[0] == 200
        tracebacks = server.log.count("Traceback")
    found = (
        f"schemathesis ended with {status}, the server lives: {alive}, tracebacks in its log: {tracebacks}"
    )
    return [] if (status, alive, tracebacks) == (0, True, 0) else [found]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("parsers", "sockets", "openapi"))
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--schemathesis", type=Path, default=Path(".venv-fuzz/bin/schemathesis"))
    parser.add_argument("--only", help="name of the one parser that is tried")
    arguments = parser.parse_args()
    logging.disable()  # the readers would log about a hundred thousand warnings
    count = f", {arguments.count} inputs" if arguments.part != "openapi" else ""
    print(f"{arguments.part}{count}, seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        if arguments.part == "openapi":
            faults = fuzz_openapi(arguments.schemathesis.absolute(), arguments.seed, Path(name))
        else:
            fuzz = partial(fuzz_parsers, only=arguments.only) if arguments.part == "parsers" else fuzz_sockets
            faults = fuzz(arguments.count, arguments.seed, Path(name))
    for fault in faults[:50]:
        print(f"FAULT {fault}")
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
