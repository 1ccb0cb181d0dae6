"""Compares Ansor's own cost model, its parts, the published network and the service.

Each is timed in one predict call of a search; the cost models are also timed in a whole evolutionary search.

For 2,048 sampled states of each of three operators, all measured in turn in one run:

(a) ``XGBModel.predict``, trained on 512 states with random costs, which do not affect its speed; (b) its feature
extraction alone; (c) the padded network in one ONNX call; (d) the padded network in chunks of the best size; (e) our
engine in-process, all of `published`; (f) ``TLPRemoteModel.predict`` through HTTP, cold and with all scores cached;
(g) and (h) the same for `loopnest`, which the server serves: its nests, its network. Further rows are TVM's own text of
the states, one by one, and the compute-bound minimum (multiply-adds at the measured GEMM rate).
Then one evolutionary search of five generations runs with each cost model.
The candidates are written to ``--candidates``, for the other benchmarks.

    .venv-ansor/bin/python benchmarks/predict.py --server-python .venv/bin/python --candidates FOLDER --out FILE
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scripts" / "demo"))

from operators import OPERATORS
from provenance import write_figures
from timing import median_and_range, seconds_of
from tvm import auto_scheduler
from tvm.auto_scheduler.cost_model import XGBModel
from tvm.auto_scheduler.feature import get_per_store_features_from_states

from tlp_client.ansor import TLPRemoteModel
from tlp_client.states import serialize_states

TARGET = "llvm -mcpu=core-avx2 -num-cores 2"
GENERATIONS = 5


class Follower:
    """``benchmarks/engine.py`` in the service's environment, which measures when it is told to."""

    def __init__(self, python, log):
        self._process = subprocess.Popen(
            [python, str(HERE / "engine.py"), str(log), "--follow"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.difference = self._read()["difference"]

    def measure(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self):
        for line in self._process.stdout:
            if line.startswith("{"):  # torch's exporter prints to the same place
                return json.loads(line)
        raise RuntimeError("benchmarks/engine.py ended")

    def close(self):
        self._process.stdin.close()
        self._process.wait()


class Timed:
    """Adds up the seconds of a cost model's predict calls."""

    def __init__(self, model):
        self.seconds, self.calls, self.candidates = 0.0, 0, 0
        predict = model.predict

        def timed(task, states):
            started = time.perf_counter()
            scores = predict(task, states)
            self.seconds += time.perf_counter() - started
            self.calls += 1
            self.candidates += len(states)
            return scores

        model.predict = timed


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


def measure_call(task, states, xgboost, url, follower):
    """Return the seconds of each way, once."""
    remote = TLPRemoteModel(url)
    remote.predict(task, states[:1])  # the round has its version, as in all but its first call
    seconds = {
        "(a) XGBModel.predict": seconds_of(lambda: xgboost.predict(task, states)),
        "(b) its features": seconds_of(lambda: get_per_store_features_from_states(states, task)),
        "(f) TLPRemoteModel, cold": seconds_of(lambda: remote.predict(task, states)),
        "(f) TLPRemoteModel, cached": seconds_of(lambda: remote.predict(task, states)),
        "of it, serializing": seconds_of(lambda: serialize_states(task, states)),
        "dump_record_to_string": seconds_of(lambda: dump(task, states)),
    }
    assert remote.counts.fallbacks == 0
    remote.outbox.close()
    engine = follower.measure()
    names = {
        "(c) padded, one call": "padded, one call",
        "(d) padded, best chunk": "padded, best chunk",
        "(e) engine": "engine",
        "(g) loopnest, nests": "loopnest: its nests",
        "(h) loopnest, engine": "loopnest: engine",
    }
    return seconds | {name: engine[key] for name, key in names.items()} | {"floor": engine["floor"]}


def search(task, model, seed):
    """Return what one evolutionary search of a round asks of a cost model."""
    timed = Timed(model)
    params = {
        **auto_scheduler.SketchPolicy.DEFAULT_PARAMS,
        "evolutionary_search_num_iters": GENERATIONS - 1,  # and one for the last generation
    }
    policy = auto_scheduler.SketchPolicy(task, model, params=params, verbose=0, seed=seed)
    population = policy.sample_initial_population()
    timed.seconds, timed.calls, timed.candidates = 0.0, 0, 0
    wall_s = seconds_of(lambda: policy.evolutionary_search(population, 64))
    return {
        "predict_s": timed.seconds,
        "wall_s": wall_s,
        "calls": timed.calls,
        "candidates": timed.candidates,
    }


def measure_search(task, xgboost, url, runs):
    searches = {"XGBModel": [], "TLPRemoteModel": []}
    hits = []
    for seed in range(runs):
        searches["XGBModel"].append(search(task, xgboost, seed))
        remote = TLPRemoteModel(url)
        searches["TLPRemoteModel"].append(search(task, remote, seed))
        hits.append(remote.counts.cached / remote.counts.candidates)
        assert remote.counts.fallbacks == 0
        remote.outbox.close()
    each = {
        name: {key: median_and_range([run[key] for run in of_model])[0] for key in of_model[0]}
        for name, of_model in searches.items()
    }
    ratio = each["XGBModel"]["predict_s"] / each["TLPRemoteModel"]["predict_s"]
    return each | {"cache_hits": median_and_range(hits)[0], "predict_ratio": ratio}


def measure(position, name, url, args):
    function, arguments = OPERATORS[name]
    task = auto_scheduler.SearchTask(func=function, args=arguments, target=TARGET)
    states = sample(task, args.states)
    log = args.candidates / f"{position}.json"
    log.write_text("\n".join(serialize_states(task, states)) + "\n")
    xgboost = trained(task, states[:512])
    follower = Follower(args.server_python, log)
    measure_call(task, states, xgboost, url, follower)
    runs = [measure_call(task, states, xgboost, url, follower) for _ in range(args.runs)]
    follower.close()
    calls = {key: median_and_range([run[key] for run in runs]) for key in runs[0]}
    report = {"seconds": calls, "bars": bars(calls), "difference": follower.difference}
    report["search"] = measure_search(task, xgboost, url, args.searches)
    show(name, report)
    return report


def bars(calls):
    """Return the ratios that docs/results.md shows, from medians of one run."""
    median = {name: seconds[0] for name, seconds in calls.items()}
    cold = median["(f) TLPRemoteModel, cold"]
    # The server serves `loopnest`.
    of_base = median["(g) loopnest, nests"] + median["(h) loopnest, engine"]
    beyond_engine = cold - of_base
    return {
        "a / f cold": median["(a) XGBModel.predict"] / cold,
        "c / f cold": median["(c) padded, one call"] / cold,
        "c / e": median["(c) padded, one call"] / median["(e) engine"],
        "e / (g + h)": median["(e) engine"] / of_base,
        "(f - g - h) / dump": beyond_engine / median["dump_record_to_string"],
        "e / floor": median["(e) engine"] / median["floor"],
    }


def show(name, report):
    calls, search_ = report["seconds"], report["search"]
    own = calls["(a) XGBModel.predict"][0]
    print(f"\n{name}")
    for label, (median, shortest, longest) in sorted(calls.items()):
        print(
            f"  {label:<28} {1e3 * median:7.0f} ms ({1e3 * shortest:.0f}-{1e3 * longest:.0f})   a is "
            f"{own / median:6.1f} x"
        )
    print("  " + "   ".join(f"{key}: {value:.2f}" for key, value in report["bars"].items()))
    print(
        f"  largest difference of engine and padded network, relative to max(1, |score|): {report['difference']:.1e}"
    )
    for model in ("XGBModel", "TLPRemoteModel"):
        figures = search_[model]
        print(
            f"  search of {figures['calls']:.0f} generations with {model}: predict {figures['predict_s']:.2f} s, "
            f"in all {figures['wall_s']:.2f} s, {figures['candidates']:.0f} candidates"
        )
    print(
        f"  predict of XGBModel is {search_['predict_ratio']:.1f} x; {100 * search_['cache_hits']:.0f} % came "
        f"from the cache",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server-python", required=True)
    parser.add_argument("--states", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--searches", type=int, default=3)
    parser.add_argument("--candidates", type=Path, required=True, help="folder that gets the candidates")
    parser.add_argument("--out", type=Path, help="file that gets the figures")
    args = parser.parse_args()
    args.candidates.mkdir(parents=True, exist_ok=True)
    command = [
        args.server_python,
        "-m",
        "tlp_service",
        "serve",
        "--port",
        "0",
        "--data-dir",
        str(args.candidates / "stream"),
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = server.stdout.readline().split()[-1]
        report = {name: measure(n, name, url, args) for n, name in enumerate(OPERATORS)}
    finally:
        server.terminate()
        server.wait()
    if args.out:
        write_figures(args.out, report)


if __name__ == "__main__":
    main()
