"""Compares the engine with the padded network and with the compute-bound minimum (multiply-adds at the GEMM rate).

All use the same candidates and weights, in one run.

The same candidates and weights, in one run.

Reads candidates that ``benchmarks/predict.py --candidates FOLDER`` left, or any tuning log of one platform kind. With
``--follow`` it takes one measurement for each line of its input and prints it as JSON, so that another benchmark can
measure in turn with it.

    .venv/bin/python benchmarks/engine.py FOLDER/0.json
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # onnxruntime reads it when it is imported

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from provenance import write_figures
from timing import median_and_range, seconds_of

from tlp_client.logs import LogReader
from tlp_client.tasks import platform_kind
from tlp_client.wire.predict import index_primitives, request_of
from tlp_service.families.published.features import PUBLISHED
from tlp_service.families.published.network import PublishedNetwork
from tlp_service.families.published.plan import RowPlan
from tlp_service.inference.network import usable_cpus
from tlp_service.inference.work import ScoringWork
from tlp_service.serving.engine import start_engine
from tlp_service.settings import Settings, shipped_model
from tlp_service.training.export import read_weights

#: of the padded network
CHUNKS = {"cpu": (16, 32, 64, 256), "cuda": (256, 512, 1024)}
#: of the products that tell the rate; a GPU has none worth the name below millions
ROWS = {"cpu": 512, "cuda": 1 << 16}
PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": ("CUDAExecutionProvider", {"use_tf32": "0"}),
}
ONE_CALL, BEST_CHUNK, ENGINE, FLOOR = "padded, one call", "padded, best chunk", "engine", "floor"
NESTS, BASE = "loopnest: its nests", "loopnest: engine"


def open_session(model, device, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=[PROVIDERS[device]])


class Padded:
    """The network as published: every padding row computed, in one session with all CPUs."""

    def __init__(self, network, table, positions, device):
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as scratch:
            warnings.simplefilter("ignore")
            batch = {0: torch.export.Dim("candidates")}
            example = (torch.zeros(2, positions.shape[1], table.shape[1]),)
            program = torch.onnx.export(network, example, dynamo=True, dynamic_shapes=(batch,), verbose=False)
            program.save(str(Path(scratch, "padded.onnx")))
            self._session = open_session(Path(scratch, "padded.onnx").read_bytes(), device, usable_cpus())
        self._name = self._session.get_inputs()[0].name
        self._rows = table[positions]

    def run(self, chunk):
        starts = range(0, len(self._rows), chunk)
        runs = [self._session.run(None, {self._name: self._rows[s : s + chunk]})[0] for s in starts]
        return np.concatenate(runs)


class Floor:
    """The seconds that the multiply-adds of the candidates take at the rate of matrix products of this network's width.

    The rate is that of ONNX Runtime with as many single threads as there are CPUs, which is the best that we found
    here.
    """

    WIDTH, LAYERS = 256, 16

    def __init__(self, network, plan, distinct_rows, device):
        linear = {n: m.weight.numel() for n, m in network.named_modules() if isinstance(m, torch.nn.Linear)}
        of_rows = sum(
            size for name, size in linear.items() if name.startswith(("encoder", "attention.project_in"))
        )
        of_places = sum(linear.values()) - of_rows
        # One more place for the padding, in those that have any.
        places = plan.lengths + (plan.lengths < plan.steps)
        attention = 2 * self.WIDTH * int((places**2).sum())
        self.multiply_adds = distinct_rows * of_rows + int(places.sum()) * of_places + attention
        nodes = [helper.make_node("MatMul", [f"x{n}", "w"], [f"x{n + 1}"]) for n in range(self.LAYERS)]
        self._device, self._rows = device, ROWS[device]
        shape = [self._rows, self.WIDTH]
        graph = helper.make_graph(
            nodes,
            "products",
            [helper.make_tensor_value_info("x0", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(f"x{self.LAYERS}", TensorProto.FLOAT, shape)],
            [numpy_helper.from_array(np.eye(self.WIDTH, dtype=np.float32), "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.checker.check_model(model)
        self._session = open_session(model.SerializeToString(), device, 1)

    def seconds(self):
        rows = np.ones((self._rows, self.WIDTH), dtype=np.float32)
        rows_there = onnxruntime.OrtValue.ortvalue_from_numpy(rows, self._device)
        repeats, parallel = 20, usable_cpus() if self._device == "cpu" else 1

        def multiply():
            binding = self._session.io_binding()
            binding.bind_ortvalue_input("x0", rows_there)
            binding.bind_output(f"x{self.LAYERS}", self._device)
            for _ in range(repeats):
                self._session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        multiply()
        threads = [threading.Thread(target=multiply) for _ in range(parallel)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - started
        return self.multiply_adds * took / (parallel * repeats * self.LAYERS * self._rows * self.WIDTH**2)


class Base:
    """The same candidates by `loopnest`: what makes its nests in Python, and its network."""

    def __init__(self, records, device):
        self._engine = start_engine(Settings(model=shipped_model("loopnest"), device=device))
        task = records[0].task
        self._request = request_of(task, (record.primitives for record in records))
        network = self._engine.versions.serving.manifest.network(platform_kind(task.target))
        weights = read_weights(self._engine.versions.serving.folder / network.file)
        of_task = sum(w.numel() for name, w in weights.items() if name.startswith("task_"))
        products = sum(w.numel() for name, w in weights.items() if name.endswith("weight"))
        self.multiply_adds = len(records) * (products - of_task) + of_task

    def prepare(self):
        return self._engine.versions.serving.prepare(self._request)

    def run(self, candidates):
        work = ScoringWork(candidates.network, candidates.table, candidates.plan)
        self._engine.executor.submit(work, "benchmark")
        return work.future.result()


class Comparison:
    """One log's candidates by all ways."""

    def __init__(self, records, engine):
        device = engine.versions.serving.device
        self.kind = kind = platform_kind(records[0].task.target)
        features = PUBLISHED[kind]
        primitives, indices, lengths = index_primitives(r.primitives for r in records)
        self.candidates, self.primitives, self.distinct = len(records), len(indices), len(primitives)
        self.table, _ = features.rows(primitives)
        self.plan = RowPlan.of(indices, lengths, features.steps)
        self._engine = engine
        network = PublishedNetwork(features.width).eval()
        of_kind = engine.versions.serving.manifest.network(kind)
        self._loaded = engine.versions.serving.loaded(of_kind)
        network.load_state_dict(read_weights(engine.versions.serving.folder / of_kind.file))
        self._padded = Padded(network, self.table, features.positions(indices, lengths), device)
        self.floor = Floor(network, self.plan, len(self.table), device)
        self.base = Base(records, device)
        self._of_base = self.base.prepare().candidates
        ours, theirs = self.run_engine(), self._padded.run(32)
        self.difference = float(np.max(np.abs(ours - theirs) / np.maximum(1, np.abs(theirs))))
        self._chunk = min(CHUNKS[device], key=lambda chunk: seconds_of(lambda: self._padded.run(chunk)))

    def run_engine(self):
        work = ScoringWork(self._loaded, self.table, self.plan)
        self._engine.executor.submit(work, "benchmark")
        return work.future.result()

    def measure(self):
        """Return the seconds of each way, once."""
        return {
            ONE_CALL: seconds_of(lambda: self._padded.run(self.candidates)),
            BEST_CHUNK: seconds_of(lambda: self._padded.run(self._chunk)),
            ENGINE: seconds_of(self.run_engine),
            FLOOR: self.floor.seconds(),
            NESTS: seconds_of(self.base.prepare),
            BASE: seconds_of(lambda: self.base.run(self._of_base)),
        }


def report(comparison, runs):
    """Measure in turn and print the table; return its figures."""
    measured = [comparison.measure() for _ in range(runs)]
    print(
        f"{comparison.candidates} candidates, {comparison.primitives} primitives, {comparison.distinct} distinct"
    )
    published, base = comparison.floor.multiply_adds, comparison.base.multiply_adds
    print(
        f"{published / 1e9:.2f} G multiply-adds must be done for published, {base / 1e9:.2f} G for loopnest: "
        f"{base / published:.2f} x"
    )
    print(f"largest difference of the scores, relative to max(1, |score|): {comparison.difference:.1e}")
    seconds = {name: median_and_range([run[name] for run in measured]) for name in measured[0]}
    engine = seconds[ENGINE][0]
    for name, (median, shortest, longest) in seconds.items():
        print(
            f"  {name:<20} {1e3 * median:8.1f} ms ({1e3 * shortest:.1f}-{1e3 * longest:.1f})   {median / engine:5.2f} x"
        )
    return {
        "seconds": seconds,
        "difference": comparison.difference,
        "multiply_adds": {"published": published, "loopnest": base},
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", type=Path)
    parser.add_argument("--device", choices=list(CHUNKS), default="cpu")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--follow", action="store_true")
    parser.add_argument("--out", type=Path, help="file that gets the figures")
    args = parser.parse_args()
    engine = start_engine(Settings(model=shipped_model("published"), device=args.device))
    comparison = Comparison(list(LogReader().read_file(args.log)), engine)
    comparison.measure()
    if args.follow:
        print(json.dumps({"difference": comparison.difference}), flush=True)
        for _ in sys.stdin:
            print(json.dumps(comparison.measure()), flush=True)
    else:
        print(engine.calibration)
        figures = report(comparison, args.runs)
        if args.out:
            write_figures(args.out, figures)


if __name__ == "__main__":
    main()
