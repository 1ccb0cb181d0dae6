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


class NoteVersion(auto_scheduler.measure.PythonBasedMeasureCallback):
    """Notes which version scored each round, before the round is ended, and says so."""

    def __init__(self, name, model):
        super().__init__()
        self._name = name
        self._model = model
        self._predicts = 0
        self.versions = []

    def callback(self, policy, inputs, results):
        # TVM calls it for each few measurements of a round.
        if self._model.counts.predicts > self._predicts:
            self._predicts = self._model.counts.predicts
            self.versions.append(self._model.version)
            print(f"{self._name}: round {len(self.versions)}, scored by {self._model.version}", flush=True)


def untuned_seconds(task):
    """Run time of the operator with no schedule at all."""
    schedule, arguments = task.compute_dag.apply_steps_from_state(task.compute_dag.get_init_state())
    function = tvm.build(schedule, arguments, task.target)
    device = tvm.cpu()
    buffers = [tvm.nd.array(np.random.rand(*map(int, a.shape)).astype(a.dtype), device) for a in arguments]
    return float(np.median(function.time_evaluator(function.entry_name, device, repeat=3)(*buffers).results))


def random_sample(task, count, builder, runner):
    """Measure candidates that nobody chose, as (inputs, results)."""
    policy = auto_scheduler.SketchPolicy(task, auto_scheduler.RandomModel(), verbose=0, seed=1)
    states = list(policy.sample_initial_population())
    np.random.default_rng(1).shuffle(states)
    inputs = [auto_scheduler.MeasureInput(task, state) for state in states[:count]]
    return inputs, runner.run(inputs, builder.build(inputs, verbose=0), verbose=0)


def pair_accuracy(scores, costs):
    """Share of the pairs of different costs that the scores order right; 0.5 is chance."""
    faster = costs[:, None] < costs[None, :]
    return float((scores[:, None] > scores[None, :])[faster].mean())


def tune(name, args, log_file):
    """Tune one operator and return its line of the report."""
    function, arguments = OPERATORS[name]
    task = auto_scheduler.SearchTask(func=function, args=arguments, target=args.target)
    model = TLPRemoteModel(args.url, platform=args.platform)
    builder = auto_scheduler.LocalBuilder(n_parallel=2)
    runner = auto_scheduler.LocalRunner(number=1, repeat=3, min_repeat_ms=20, timeout=20)
    untuned = untuned_seconds(task)
    sampled = random_sample(task, args.sample, builder, runner)
    auto_scheduler.save_records(str(log_file), *sampled)
    model.update(*sampled)
    noted = NoteVersion(name, model)
    options = auto_scheduler.TuningOptions(
        num_measure_trials=args.trials,
        num_measures_per_round=args.trials_per_round,
        builder=builder,
        runner=runner,
        measure_callbacks=[auto_scheduler.RecordToFile(str(log_file)), noted, SendMeasured(model)],
        verbose=0,
    )
    task.tune(options, search_policy=auto_scheduler.SketchPolicy(task, model, verbose=0))
    flushed = model.outbox.flush(30)
    counts = replace(model.counts)  # before the scores below add to them
    inputs, results = auto_scheduler.RecordReader(str(log_file)).read_lines()
    failed = np.array([r.error_no != 0 for r in results])
    costs = np.array([float(np.median([c.value for c in r.costs])) for r in results])
    scores = np.array(model.predict(task, [i.state for i in inputs]))
    is_sample = ~failed & (np.arange(len(results)) < args.sample)
    return {
        "operator": name,
        "measured": len(results),
        "trials": len(results) - args.sample,
        "failed": int(failed.sum()),
        "untuned_ms": 1e3 * untuned,
        "sample_ms": 1e3 * float(costs[is_sample].min()),
        "tuned_ms": 1e3 * float(costs[~failed].min()),
        "predicts": counts.predicts,
        "candidates": counts.candidates,
        "fallbacks": counts.fallbacks,
        "sent": model.outbox.acknowledged,
        "all_sent": flushed,
        "sample_pairs": pair_accuracy(scores[is_sample], costs[is_sample]),
        "pairs": pair_accuracy(scores[~failed], costs[~failed]),
        "versions": noted.versions,
        # In the order in which they were measured, the random ones first; null for a run that failed.
        "costs_ms": [
            None if f else round(1e3 * c, 6) for f, c in zip(failed.tolist(), costs.tolist(), strict=True)
        ],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--platform", required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the tuning logs")
    parser.add_argument("--report", type=Path, required=True, help="file that gets the report")
    parser.add_argument("--target", default="llvm -mcpu=core-avx2 -num-cores 2")
    parser.add_argument("--operators", type=int, nargs="+", default=[0], help="their numbers")
    parser.add_argument("--trials", type=int, default=192)
    parser.add_argument("--trials-per-round", type=int, default=64)
    parser.add_argument("--sample", type=int, default=24, help="random candidates measured before the search")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    report = []
    for number in args.operators:
        name = list(OPERATORS)[number]
        print(f"tuning {name} …", flush=True)
        report.append(tune(name, args, args.out / f"operator-{number}.json"))
    args.report.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
