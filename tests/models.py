"""A model version whose scores can be computed by hand: raw = the sum of one column of all rows, times a factor."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tlp_service.features.published import PUBLISHED
from tlp_service.versions.manifest import (
    SCHEMA,
    Manifest,
    Network,
    ScoreMap,
    sha256_of,
    version_name,
    write_version,
)

#: the column of the first argument of a primitive: its stage
STAGE_COLUMN = 11


def write_linear_onnx(path: Path, row_width: int, factor: float) -> None:
    """Write a network of the form of `DistinctForm` whose encoded row is its score."""
    weights = np.zeros((row_width, 1), dtype=np.float32)
    weights[STAGE_COLUMN] = factor

    def value(name, kind, *shape):
        return helper.make_tensor_value_info(name, kind, list(shape))

    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["rows", "weights"], ["encoded"]),
            helper.make_node("Gather", ["known_encoded", "positions"], ["gathered"], axis=0),
            helper.make_node("Squeeze", ["gathered", "last"], ["scores"]),
            helper.make_node("Mul", ["scores", "counts"], ["counted"]),
            helper.make_node("ReduceSum", ["counted", "second"], ["raw_scores"], keepdims=0),
        ],
        "linear",
        [
            value("rows", TensorProto.FLOAT, "new", row_width),
            value("known_encoded", TensorProto.FLOAT, "known", 1),
            value("positions", TensorProto.INT64, "candidates", "places"),
            value("counts", TensorProto.FLOAT, "candidates", "places"),
        ],
        [value("encoded", TensorProto.FLOAT, "new", 1), value("raw_scores", TensorProto.FLOAT, "candidates")],
        [
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(np.array([2], dtype=np.int64), "last"),
            numpy_helper.from_array(np.array([1], dtype=np.int64), "second"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def write_linear_version(
    folder: Path, factor: float = 1.0, platforms: dict[str, list[str]] | None = None, scale: float = 1.0
) -> Path:
    """Write a version that scores the sum of the stages, with center 0, for both platform kinds."""
    platforms = platforms or {"cpu": ["epyc"], "gpu": ["k80", "v100"]}
    scratch = folder / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    files, networks = {}, []
    for kind, names in platforms.items():
        features = PUBLISHED[kind]
        path = scratch / f"{kind}.onnx"
        write_linear_onnx(path, features.width, factor)
        files[path.name] = path
        networks.append(
            Network(
                platform_kind=kind,
                file=path.name,
                sha256=sha256_of(path),
                features="published",
                steps=features.steps,
                row_width=features.width,
                platforms=names,
                score_map=ScoreMap("softsign", 0.0, scale),
            )
        )
    name = version_name("published", networks)
    manifest = Manifest(SCHEMA, "published", name, "2026-01-01T00:00:00+00:00", networks)
    return write_version(folder / "versions", manifest, files)


def linear_score(stages: int, scale: float = 1.0) -> float:
    """Score of a candidate whose primitives' stages sum up to `stages`."""
    x = stages / scale
    return 1 - 0.5 / (1 + x) if x >= 0 else 0.5 / (1 - x)
