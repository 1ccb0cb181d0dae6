"""One predict call of a search, side by side: Ansor's own cost model, its parts, and the service.

For 2,048 sampled states of each of three operators, in one run: ``XGBModel.predict`` (trained on 512 states with made-up costs, which
cost the same as real ones), its feature extraction alone, TVM's own text of the states, and ``TLPRemoteModel.predict`` through HTTP.
The candidates are left in ``--out`` for ``benchmarks/engine.py``.

    .venv-ansor/bin/python benchmarks/predict.py --server-python .venv/bin/python
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts" / "demo"))

from operators import OPERATORS
from timing import times
from tvm import auto_scheduler
from tvm.auto_scheduler.cost_model import XGBModel
from tvm.auto_scheduler.feature import get_per_store_features_from_states

from tlp_client.ansor import TLPRemoteModel
from tlp_client.states import serialize_states

TARGET = "llvm -mcpu=core-avx2 -num-cores 2"


def sample(task, count):
    policy = auto_scheduler.SketchPolicy(task, auto_scheduler.RandomModel(), verbose=0, seed=1)
    states = []
    while len(states) < count:
        states += list(policy.sample_initial_population())
    return states[:count]


def trained(task, states):
    model = XGBModel(verbose_eval=0, num_warmup_sample=0)
    inputs = [auto_scheduler.MeasureInput(task, state) for state in states]
    costs = [0.001 * (1 + n % 7) for n in range(len(states))]
    model.update(inputs, [auto_scheduler.MeasureResult([c], 0, "", 0.1, 1.0) for c in costs])
    return model


def dump(task, states):
    nothing = auto_scheduler.MeasureResult([0.0], 0, "", 0.0, 0.0)
    for state in states:
        auto_scheduler.measure_record.dump_record_to_string(auto_scheduler.MeasureInput(task, state), nothing)


def measure(position, name, url, args):
    function, arguments = OPERATORS[name]
    task = auto_scheduler.SearchTask(func=function, args=arguments, target=TARGET)
    states = sample(task, args.states)
    xgboost, remote = trained(task, states[:512]), TLPRemoteModel(url)
    seconds = {
        "Ansor's XGBModel.predict": times(lambda: xgboost.predict(task, states), args.runs),
        "  of it, its features": times(lambda: get_per_store_features_from_states(states, task), args.runs),
        "TLPRemoteModel.predict": times(lambda: remote.predict(task, states), args.runs),
        "  of it, serializing": times(lambda: serialize_states(task, states), args.runs),
        "TVM's dump_record_to_string": times(lambda: dump(task, states), args.runs),
    }
    assert remote.counts.fallbacks == 0
    lines = serialize_states(task, states)
    (args.out / f"{position}.json").write_text("\n".join(lines) + "\n")
    return seconds


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server-python", required=True)
    parser.add_argument("--states", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder for the candidates and predict.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        args.out = args.out or Path(scratch, "states")
        args.out.mkdir(parents=True, exist_ok=True)
        command = [
            args.server_python,
            "-m",
            "tlp_service",
            "serve",
            "--port",
            "0",
            "--data-dir",
            f"{scratch}/stream",
        ]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            url = server.stdout.readline().split()[-1]
            report = {name: measure(n, name, url, args) for n, name in enumerate(OPERATORS)}
        finally:
            server.terminate()
            server.wait()
        (args.out / "predict.json").write_text(json.dumps(report, indent=2))
    for name, seconds in report.items():
        print(f"\n{name}, {args.states} states")
        own = seconds["Ansor's XGBModel.predict"][0]
        for label, (median, shortest, longest) in seconds.items():
            print(
                f"  {label:<30} {1e3 * median:8.0f} ms ({1e3 * shortest:.0f}-{1e3 * longest:.0f})   {own / median:6.1f} x"
            )
    print("\nThe last column: how many times as fast as Ansor's own model, in this run.")


if __name__ == "__main__":
    main()
