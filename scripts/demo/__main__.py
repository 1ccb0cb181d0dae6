"""Run the demo.

The service runs on its embedded default. Two workers tune with real Ansor against it, and it keeps their results and
learns from them.

Run by ``make demo``, which has made the two environments. Exits with 1 unless the service answered every predict and
every measured record is in the record store; with ``--expect-learning`` also unless both workers searched with a
version that was learned while they did.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from itertools import chain
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "benchmarks"))

from provenance import write_figures

#: Numbers of the operators that each worker tunes, one after the other; the second's takes as long as the first's two.
WORKERS = (("0", "2"), ("1",))


def start_server(args):
    """Start ``tlp serve`` on a free port and return it with its URL."""
    command = [args.server_python, "-m", "tlp_service", "serve", "--port", "0"]
    command += ["--data-dir", str(args.out / "stream")]
    environment = {**os.environ, "TLP_TRAIN_RECORDS": str(args.train_records)}
    server = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=(args.out / "server.log").open("w"),
        text=True,
        env=environment,
    )
    line = server.stdout.readline()
    if "listening on" not in line:
        sys.exit(f"the server did not start; see {args.out / 'server.log'}")
    return server, line.split()[-1]


def metric(url, name):
    """Value of an unlabelled metric of the server."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def print_report(report):
    head = (
        "operator",
        "trials",
        "untuned",
        "random 24",
        "tuned",
        "scored",
        "fallbacks",
        "pairs: random",
        "all",
    )
    row = "{:<43} {:>6} {:>10} {:>10} {:>10} {:>8} {:>9} {:>13} {:>5}"
    print(row.format(*head))
    for line in report:
        times = (f"{line[key]:.3f} ms" for key in ("untuned_ms", "sample_ms", "tuned_ms"))
        shares = (f"{line[key]:.2f}" for key in ("sample_pairs", "pairs"))
        print(
            row.format(
                line["operator"], line["trials"], *times, line["candidates"], line["fallbacks"], *shares
            )
        )
    print(
        "untuned: no schedule; random 24: the best of 24 random candidates; tuned: the best found. scored: candidates\n"
        "that the service scored. pairs: share of the measured pairs whose order the scores give (0.5 is chance),\n"
        "among the random candidates, and among all, most of which the scores themselves have chosen."
    )


def start_worker(args, url, number):
    """Start a worker."""
    command = [args.worker_python, str(HERE / "tune.py"), "--url", url, "--platform", args.platform]
    command += ["--out", str(args.out), "--report", str(args.out / f"report-{number}.json")]
    command += ["--operators", *WORKERS[number], "--trials", str(args.trials)]
    command += ["--trials-per-round", str(args.trials_per_round)]
    # TVM builds candidates in processes of its own, which have to import the operators, too.
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    with (args.out / f"worker-{number}.log").open("w") as log:  # TVM warns of each schedule it can't bound
        return subprocess.Popen(command, stderr=log, env=environment)


def print_learning(args, reports, quality):
    """Print what was learned and who used it; return the versions that were learned and that both workers used."""
    command = [args.server_python, "-m", "tlp_service", "models", "list"]
    command += ["--registry", str(args.out / "stream" / "models")]
    print("\nversions (tlp models list):")
    print(subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip())
    for line in chain(*reports):
        print(f"rounds of {line['operator']} were scored by {', '.join(line['versions'])}")
    told = quality["platforms"].get(args.platform, {})
    for version, figures in told.items():
        if figures["pair_accuracy"] is None or figures["top1_regret"] is None:
            print(f"prediction error of {version}: {figures['measured']} measured are too few to tell")
            continue
        print(
            f"prediction error of {version}, by the service (GET /v1/quality): {figures['pair_accuracy']:.2f} "
            f"of {figures['measured']} "
            f"measured ordered right, the best-scored candidate of a round takes {figures['top1_regret']:.0%} "
            f"longer than its best"
        )
    used = [{version for line in report for version in line["versions"]} for report in reports]
    first = reports[0][0]["versions"][0]
    return (used[0] & used[1] & set(told)) - {first}


def recorded_quality(url):
    """Wait until the recorder has taken over all measurements, and return what the service says of its error."""
    deadline = time.monotonic() + 60
    while metric(url, "tlp_measurement_stream_length") != 0 and time.monotonic() < deadline:
        time.sleep(0.2)
    while True:
        with urllib.request.urlopen(f"{url}/v1/quality") as answer:
            quality = json.load(answer)
        if quality["platforms"] or time.monotonic() > deadline:
            return quality
        time.sleep(0.5)


def stored_records(args):
    """Count the records in the store, as its command shows them."""
    command = [
        args.server_python,
        "-m",
        "tlp_service",
        "records",
        "show",
        str(args.out / "stream" / "records"),
    ]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return sum(int(line.split()[1]) for line in shown[2:])


def arguments_of(args):
    return {name: getattr(args, name) for name in ("trials", "trials_per_round", "train_records")}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server-python", required=True, help="Python of the service's environment")
    parser.add_argument("--worker-python", required=True, help="Python of the environment with TVM")
    parser.add_argument("--platform", default="cpu", help="platform under which the records are sent")
    parser.add_argument("--trials", type=int, default=192, help="measurements an operator")
    parser.add_argument("--trials-per-round", type=int, default=64)
    parser.add_argument(
        "--train-records", type=int, default=64, help="new records at which the trainer learns"
    )
    parser.add_argument(
        "--expect-learning",
        action="store_true",
        help="fail unless both workers used a version that was learned",
    )
    parser.add_argument("--json", type=Path, help="file that gets all figures (default: .demo/demo.json)")
    args = parser.parse_args()
    args.out = HERE.parents[1] / ".demo"
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir()
    args.json = args.json or args.out / "demo.json"
    server, url = start_server(args)
    try:
        print(f"the service runs at {url}; its log is {args.out / 'server.log'}", flush=True)
        workers = [start_worker(args, url, number) for number in range(len(WORKERS))]
        for number, worker in enumerate(workers):
            if worker.wait():
                log = args.out / f"worker-{number}.log"
                sys.exit(f"tuning failed with status {worker.returncode}; see {log}")
        quality = recorded_quality(url)
    finally:
        server.terminate()
        server.wait(timeout=30)
    reports = [json.loads((args.out / f"report-{number}.json").read_text()) for number in range(len(WORKERS))]
    report = list(chain(*reports))
    print_report(report)
    learned = print_learning(args, reports, quality)
    kept = stored_records(args)
    measured = sum(line["measured"] for line in report)
    fallbacks = sum(line["fallbacks"] for line in report)
    print(
        f"{measured} records measured, {kept} in the record store, {fallbacks} fallbacks; "
        f"learned meanwhile and used by both workers: {', '.join(learned) or 'none'}"
    )
    if not learned:
        print(
            "that is well: what serves is only what ranks held-back candidates better than chance explains, and "
            "some hundred records may\n"
            f"not show that. What the trainer did is in {args.out / 'server.log'}"
        )
    figures = {"arguments": arguments_of(args), "operators": report, "quality": quality["platforms"]}
    write_figures(args.json, figures)
    if fallbacks or kept != measured or server.returncode != 0:
        sys.exit(f"the demo failed (the server's exit status is {server.returncode})")
    if args.expect_learning and not learned:
        sys.exit("no version was learned in time")


if __name__ == "__main__":
    main()
