"""Compare our record parser with TVM's: which lines each accepts, whether they read alike, and how fast ours is.

Reads every log below a folder with TVM's ``RecordReader`` and with ours. Where TVM stops at a line it cannot read, its
lines are given to it one by one. Speed is a ratio against ``json.loads`` of the same lines, in the same run on one
core.

    .venv-ansor/bin/python benchmarks/parse_logs.py FOLDER… --out FILE
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

from provenance import write_figures
from tvm import auto_scheduler

from tlp_client.logs import LOG_SUFFIXES, LogReader, open_log
from tlp_client.records import Record


def tvm_reads(path, lines):
    """Return {line number: (costs, error number)} of the lines that TVM accepts."""
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.startswith(b"#")]
    results = _tvm_results(lines)
    if results is not None and len(results) == len(numbered):
        return {n: _outcome(result) for (n, _), result in zip(numbered, results, strict=True)}
    alone = ((n, _tvm_results([line])) for n, line in numbered)
    return {n: _outcome(results[0]) for n, results in alone if results}


def _tvm_results(lines):
    """Return what RecordReader reads from a file of these lines, or None where it stops."""
    with tempfile.NamedTemporaryFile(suffix=".json") as plain:
        plain.write(b"".join(lines))
        plain.flush()
        try:
            return [result for _, result in auto_scheduler.RecordReader(plain.name)]
        except Exception:  # noqa: BLE001  TVM raises several classes, some with messages that are not UTF-8
            return None


def _outcome(result):
    return tuple(cost.value for cost in result.costs), int(result.error_no)


def seconds_a_pass(work, passes):
    times = []
    for _ in range(passes):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def speed(lines, passes):
    """Return records a second of json.loads and of our parser."""
    records = [line for line in lines if line.startswith(b'{"i"')]

    def by_json():
        for line in records:
            json.loads(line)

    def by_ours():
        for _ in LogReader().read_lines(records):
            pass

    return len(records), seconds_a_pass(by_json, passes), seconds_a_pass(by_ours, passes)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--passes", type=int, default=3, help="passes over each file for the speed")
    parser.add_argument("--out", type=Path, help="file that gets the figures")
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    totals, reasons = Counter(), Counter()
    json_s = ours_s = 0.0
    refused_but_accepted = []
    for path in sorted(p for folder in args.folders for p in folder.rglob("*")):
        if not path.is_file() or not path.name.endswith(LOG_SUFFIXES):
            continue
        with open_log(path) as file:
            lines = list(file)
        theirs = tvm_reads(path, lines)
        reader = LogReader()
        ours = dict(reader.read_lines(lines, str(path)))
        totals["files"] += 1
        totals["lines"] += len(lines)
        totals["accepted by TVM"] += len(theirs)
        totals["accepted by ours"] += reader.counts["records"]
        totals["comments"] += reader.counts["comments"]
        for refused in reader.refused:
            reasons[refused.reason.split(":")[0]] += 1
            print(refused)
        for n, outcome in theirs.items():
            record = ours.get(n)
            if not isinstance(record, Record):
                refused_but_accepted.append(record)
            elif (record.costs, record.error_no) == outcome:
                totals["equal to TVM's costs and error number"] += 1
        count, by_json, by_ours = speed(lines, args.passes)
        totals["timed"] += count
        json_s += by_json
        ours_s += by_ours
    for name, value in totals.items():
        print(f"{name}: {value}")
    print("refused by ours:", dict(reasons))
    print("accepted by TVM, refused by ours:", len(refused_but_accepted))
    for refused in refused_but_accepted[:20]:
        print("  ", refused)
    equal = totals["equal to TVM's costs and error number"]
    print(f"of what TVM accepts, ours reads alike: {100 * equal / max(1, totals['accepted by TVM']):.4f} %")
    print(
        f"speed on one core: {totals['timed'] / ours_s:,.0f} records/s, "
        f"json.loads alone {totals['timed'] / json_s:,.0f}; ratio of times {ours_s / json_s:.2f}"
    )
    if args.out:
        figures = {**totals, "accepted by TVM, refused by ours": len(refused_but_accepted)}
        write_figures(args.out, figures | {"time_ratio_to_json": ours_s / json_s})


if __name__ == "__main__":
    main()
