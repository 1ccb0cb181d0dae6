"""The engine beside the padded network it computes: the same candidates, the same weights, in one run.

Reads candidates that ``benchmarks/predict.py --out FOLDER`` left, or any tuning log of one platform kind.

    .venv/bin/python benchmarks/engine.py FOLDER/*.json
"""

import argparse
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from timing import times

from tlp_client.logs import LogReader
from tlp_client.tasks import platform_kind
from tlp_service.features.published import PUBLISHED
from tlp_service.models.export import export_onnx
from tlp_service.models.published import PublishedNetwork
from tlp_service.scoring.session import RawScorer, usable_cpus

CHUNKS = (16, 32, 64, 256, 2048)


def padded_session(network, steps, width, path):
    """Export the network as published, every padding row computed, and open it as the engine is opened."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = {0: torch.export.Dim("candidates")}
        example = (torch.zeros(2, steps, width),)
        program = torch.onnx.export(network, example, dynamo=True, dynamic_shapes=(batch,), verbose=False)
    program.save(str(path))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = usable_cpus()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logs", type=Path, nargs="+")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    for log in args.logs:
        records = list(LogReader().read_file(log))
        features = PUBLISHED[platform_kind(records[0].task.target)]
        known = {}
        indices = np.array([known.setdefault(p, len(known)) for r in records for p in r.primitives])
        lengths = np.array([len(r.primitives) for r in records])
        table, _ = features.rows(list(known))
        positions = features.positions(indices, lengths)
        torch.manual_seed(0)
        network = PublishedNetwork(features.width).eval()
        with tempfile.TemporaryDirectory() as scratch:
            export_onnx(network, table, positions[:64].astype(np.int32), Path(scratch, "engine.onnx"))
            engine = RawScorer(Path(scratch, "engine.onnx"), features.steps, "cpu")
            session = padded_session(network, features.steps, features.width, Path(scratch, "padded.onnx"))
            name = session.get_inputs()[0].name

        def padded(chunk, session=session, name=name, table=table, positions=positions):
            starts = range(0, len(positions), chunk)
            runs = [session.run(None, {name: table[positions[s : s + chunk]]})[0] for s in starts]
            return np.concatenate(runs)

        ours, theirs = engine.run(table, indices, lengths), padded(32)
        difference = np.max(np.abs(ours - theirs) / np.maximum(1, np.abs(theirs)))
        print(f"\n{log.name}: {len(records)} candidates, {len(indices)} primitives, {len(known)} distinct")
        print(f"  largest difference of the scores, relative to max(1, |score|): {difference:.1e}")
        rows = {f"padded, in chunks of {c}": times(lambda c=c: padded(c), args.runs) for c in CHUNKS}
        run = lambda engine=engine, t=table, i=indices, n=lengths: engine.run(t, i, n)
        rows["engine, from distinct rows"] = times(run, args.runs)
        ours_s = rows["engine, from distinct rows"][0]
        for label, (median, shortest, longest) in rows.items():
            print(
                f"  {label:<30} {1e3 * median:8.0f} ms ({1e3 * shortest:.0f}-{1e3 * longest:.0f})   {median / ours_s:6.1f} x"
            )


if __name__ == "__main__":
    main()
