"""The worker's half of the demo: tunes with real Ansor through the service. Runs where TVM is."""

import argparse
import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import tvm
from operators import OPERATORS
from tvm import auto_scheduler

from tlp_client.ansor import SendMeasured, TLPRemoteModel


def untuned_seconds(task):
    """Run time of the operator with no schedule at all."""
    schedule, arguments = task.compute_dag.apply_steps_from_state(task.compute_dag.get_init_state())
    function = tvm.build(schedule, arguments, task.target)
    device = tvm.cpu()
    buffers = [tvm.nd.array(np.random.rand(*map(int, a.shape)).astype(a.dtype), device) for a in arguments]
    return float(np.median(function.time_evaluator(function.entry_name, device, repeat=3)(*buffers).results))


def pair_accuracy(scores, costs):
    """Share of the pairs of different costs that the scores order right; 0.5 is chance."""
    faster = costs[:, None] < costs[None, :]
    return float((scores[:, None] > scores[None, :])[faster].mean())


def tune(name, args, log_file):
    """Tune one operator and return its line of the report."""
    function, arguments = OPERATORS[name]
    task = auto_scheduler.SearchTask(func=function, args=arguments, target=args.target)
    model = TLPRemoteModel(args.url, platform=args.platform)
    before = untuned_seconds(task)
    options = auto_scheduler.TuningOptions(
        num_measure_trials=args.trials,
        num_measures_per_round=args.trials_per_round,
        builder=auto_scheduler.LocalBuilder(n_parallel=2),
        runner=auto_scheduler.LocalRunner(number=1, repeat=3, min_repeat_ms=20, timeout=20),
        measure_callbacks=[auto_scheduler.RecordToFile(str(log_file)), SendMeasured(model)],
        verbose=0,
    )
    task.tune(options, search_policy=auto_scheduler.SketchPolicy(task, model, verbose=0))
    flushed = model.outbox.flush(30)
    searched = replace(model.counts)  # before the scores below add to them
    inputs, results = auto_scheduler.RecordReader(str(log_file)).read_lines()
    costs = np.array([float(np.median([c.value for c in r.costs])) for r in results])
    failed = np.array([r.error_no != 0 for r in results])
    states = [i.state for i in inputs]
    scores = np.array(model.predict(task, states))
    return {
        "operator": name,
        "trials": len(results),
        "failed": int(failed.sum()),
        "untuned_ms": 1e3 * before,
        "first_round_ms": 1e3 * float(costs[: args.trials_per_round][~failed[: args.trials_per_round]].min()),
        "tuned_ms": 1e3 * float(costs[~failed].min()),
        "predicts": searched.predicts,
        "candidates": searched.candidates,
        "fallbacks": searched.fallbacks,
        "sent": model.outbox.acknowledged,
        "all_sent": flushed,
        "pair_accuracy": pair_accuracy(scores[~failed], costs[~failed]),
        "version": model.version,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--platform", required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the tuning logs and report.json")
    parser.add_argument("--target", default="llvm -mcpu=core-avx2 -num-cores 2")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--trials-per-round", type=int, default=16)
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    report = []
    for position, name in enumerate(OPERATORS):
        print(f"tuning {name} …", flush=True)
        report.append(tune(name, args, args.out / f"operator-{position}.json"))
    (args.out / "report.json").write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
