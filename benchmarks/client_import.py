"""What importing the Ansor client costs beyond TVM: medians of fresh processes, in one run.

.venv-ansor/bin/python benchmarks/client_import.py
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

from provenance import write_figures

PROGRAM = """
import time
started = time.perf_counter()
import tvm.auto_scheduler
tvm_ready = time.perf_counter()
import tlp_client.ansor
print(tvm_ready - started, time.perf_counter() - tvm_ready)
"""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--out", type=Path, help="file that gets the figures")
    args = parser.parse_args()
    pairs = []
    for _ in range(args.runs):
        ended = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
        pairs.append(tuple(map(float, ended.stdout.split())))
    tvm, client = (sorted(column) for column in zip(*pairs, strict=True))
    for name, times in (("TVM's auto_scheduler", tvm), ("tlp_client.ansor beyond it", client)):
        print(
            f"{name}: median {1e3 * statistics.median(times):.0f} ms ({1e3 * times[0]:.0f}-{1e3 * times[-1]:.0f})"
        )
    ratio = statistics.median(client) / statistics.median(tvm)
    print(f"ratio: {ratio:.3f}")
    if args.out:
        figures = {"tvm_s": statistics.median(tvm), "client_s": statistics.median(client), "ratio": ratio}
        write_figures(args.out, figures)


if __name__ == "__main__":
    main()
