"""A model version whose scores can be computed by hand: raw = the sum of one column of all rows, times a factor."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tlp_client.tasks import PlatformKind
from tlp_service.families.published.features import PUBLISHED
from tlp_service.versions.bounded_file import sha256_of
from tlp_service.versions.manifest import (
    SCHEMA,
    Manifest,
    Network,
    ScoreMap,
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


def _before_encoded(model: onnx.ModelProto, *nodes: onnx.NodeProto) -> None:
    """Insert nodes between the encoding of rows (renamed to ``plain``) and the output ``encoded``."""
    model.graph.node[0].output[0] = "plain"
    for place, node in enumerate(nodes, 1):
        model.graph.node.insert(place, node)


def _add_constant(model: onnx.ModelProto, name: str, value: npt.NDArray[np.generic]) -> None:
    model.graph.initializer.append(numpy_helper.from_array(value, name))


def _loop(steps: str) -> onnx.NodeProto:
    """Return a loop that copies the encoding; a tensor contains the number of iterations."""

    def value(name, kind, *shape):
        return helper.make_tensor_value_info(name, kind, list(shape))

    body = helper.make_graph(
        [
            helper.make_node("Identity", ["goes_on"], ["still_goes_on"]),
            helper.make_node("Identity", ["before"], ["after"]),
        ],
        "body",
        [
            value("number", TensorProto.INT64),
            value("goes_on", TensorProto.BOOL),
            value("before", TensorProto.FLOAT, "new", 1),
        ],
        [value("still_goes_on", TensorProto.BOOL), value("after", TensorProto.FLOAT, "new", 1)],
    )
    return helper.make_node("Loop", [steps, "", "plain"], ["encoded"], body=body)


def endless(model: onnx.ModelProto) -> None:
    """Make a network loop for ever."""
    _add_constant(model, "steps", np.array(2**62, dtype=np.int64))
    _before_encoded(model, _loop("steps"))


def endless_from(total: float) -> Callable[[onnx.ModelProto], None]:
    """Return a function that makes a network loop for ever if its rows have this sum."""

    def spoil(model: onnx.ModelProto) -> None:
        _add_constant(model, "unit", np.array(total, dtype=np.float32))
        _add_constant(model, "many", np.array(1e15, dtype=np.float32))
        _before_encoded(
            model,
            helper.make_node("ReduceSum", ["rows"], ["sum"], keepdims=0),
            helper.make_node("Abs", ["sum"], ["total"]),
            helper.make_node("Div", ["total", "unit"], ["units"]),
            helper.make_node("Floor", ["units"], ["whole_units"]),
            helper.make_node("Mul", ["whole_units", "many"], ["real_steps"]),
            helper.make_node("Cast", ["real_steps"], ["steps"], to=TensorProto.INT64),
            _loop("steps"),
        )

    return spoil


def enormous(model: onnx.ModelProto) -> None:
    """Make a network allocate 8 GiB, without changing its scores."""
    _add_constant(model, "size", np.array([2**31], dtype=np.int64))
    _before_encoded(
        model,
        helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
        helper.make_node("ReduceMax", ["zeros"], ["zero"], keepdims=0),
        helper.make_node("Add", ["plain", "zero"], ["encoded"]),
    )


def write_linear_version(
    folder: Path,
    factor: float = 1.0,
    platforms: Mapping[PlatformKind, list[str]] | None = None,
    scale: float = 1.0,
    spoil: Callable[[onnx.ModelProto], None] = lambda model: None,
) -> Path:
    """Write a version that scores the sum of the stages, with center 0, for both platform kinds.

    `spoil` changes its networks.
    """
    by_kind: Mapping[PlatformKind, list[str]] = platforms or {"cpu": ["epyc"], "gpu": ["k80", "v100"]}
    scratch = folder / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    files, networks = {}, []
    for kind, names in by_kind.items():
        features = PUBLISHED[kind]
        path = scratch / f"{kind}.onnx"
        write_linear_onnx(path, features.width, factor)
        model = onnx.load(path)
        spoil(model)
        onnx.save(model, path)
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
