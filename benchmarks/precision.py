"""What INT8 would give and cost: speed beside float32 in one run, and whether it ranks measured records alike.

Quantizes the wide products after the attention (per channel, activations by the range seen over the same records, which
favours INT8) with ONNX Runtime's own tool, and scores a tuning log of measured records with both. A version may be
served in INT8 only if Kendall's tau against float32 inside tasks is at least 0.99 and the top-5 score is the same.

    .venv/bin/python benchmarks/precision.py tests/data/measured.json
"""

import argparse
import logging
import os
import tempfile
import warnings
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # onnxruntime reads it when it is imported

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from provenance import write_figures
from timing import median_and_range, seconds_of

from tlp_client.logs import LogReader
from tlp_client.wire.predict import index_primitives
from tlp_service.families.published.features import PUBLISHED
from tlp_service.families.published.plan import RowPlan
from tlp_service.inference.network import OnnxNetwork
from tlp_service.ranking.ranking import rank_tasks
from tlp_service.settings import shipped_model

#: parameters of the layers with 256 inputs that run once a place
WIDE = ("project_out", "residuals", "head.0", "head.2")
LEAST_TAU = 0.99


class Feeds(CalibrationDataReader):
    """What a network is fed with when it scores a plan."""

    def __init__(self, network, table, plan):
        encoded = [value.numpy() for value in network.encode(table)]
        known = dict(zip(network.known_names, encoded, strict=True))
        runs = (plan.run(first, 64) for first in range(0, len(plan.order), 64))
        rows = np.zeros((1, table.shape[1]), dtype=np.float32)
        self._feeds = iter(
            [{"rows": rows, **known, "positions": run.positions, "counts": run.values} for run in runs]
        )

    def get_next(self):
        return next(self._feeds, None)


def quantize(path, feeds, out):
    wide = [
        node.name
        for node in onnx.load(str(path)).graph.node
        if node.op_type == "Gemm" and any(part in name for name in node.input for part in WIDE)
    ]
    logging.getLogger().setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_static(
            str(path),
            str(out),
            feeds,
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=wide,
        )
    return len(wide)


def kendall_tau(ours, theirs):
    first, second = np.triu_indices(len(ours), 1)
    return float(np.mean(np.sign(ours[first] - ours[second]) * np.sign(theirs[first] - theirs[second])))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", type=Path, help="measured records of CPU tasks")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--out", type=Path, help="file that gets the figures")
    args = parser.parse_args()
    features, path = PUBLISHED["cpu"], shipped_model("published") / "cpu.onnx"
    records = [r for r in LogReader().read_file(args.log) if r.error_no == 0]
    primitives, indices, lengths = index_primitives(r.primitives for r in records)
    plan = RowPlan.of(indices, lengths, features.steps)
    table, broken = features.rows(primitives)
    assert not broken
    float32 = OnnxNetwork(path, "cpu")
    with tempfile.TemporaryDirectory() as scratch:
        layers = quantize(path, Feeds(float32, table, plan), Path(scratch, "int8.onnx"))
        int8 = OnnxNetwork(Path(scratch, "int8.onnx"), "cpu")
    seconds = {"float32": [], "int8": []}
    for _ in range(args.runs):
        for name, network in (("float32", float32), ("int8", int8)):
            seconds[name].append(seconds_of(lambda network=network: network.score_all(table, plan)))
    for name, times in seconds.items():
        median, shortest, longest = median_and_range(times)
        print(f"{name}: {1e3 * median:.0f} ms ({1e3 * shortest:.0f}-{1e3 * longest:.0f})")
    ratio = median_and_range(seconds["float32"])[0] / median_and_range(seconds["int8"])[0]
    print(f"INT8 in {layers} layers is {ratio:.2f} times as fast, {len(records)} candidates on one thread")
    tasks = {}
    for position, record in enumerate(records):
        tasks.setdefault(record.task, []).append(position)
    ours, theirs = int8.score_all(table, plan), float32.score_all(table, plan)
    costs = np.array([np.median(record.costs) for record in records])
    tau = float(np.mean([kendall_tau(ours[p], theirs[p]) for p in tasks.values() if len(p) > 1]))
    top5 = [rank_tasks((s[p], costs[p]) for p in tasks.values()).top5_mean for s in (theirs, ours)]
    print(
        f"Kendall's tau against float32, mean of {len(tasks)} tasks: {tau:.3f}; top-5 {top5[0]:.3f}, INT8 {top5[1]:.3f}"
    )
    figures = {"candidates": len(records), "layers": layers, "speed_ratio": ratio, "tasks": len(tasks)}
    figures |= {"kendall_tau": tau, "top5_float32": top5[0], "top5_int8": top5[1]}
    if args.out:
        write_figures(args.out, figures)
    print("INT8 ranks alike" if tau >= LEAST_TAU and top5[0] == top5[1] else "INT8 does not rank alike")


if __name__ == "__main__":
    main()
