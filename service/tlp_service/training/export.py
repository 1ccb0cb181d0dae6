"""From a trained network to an ONNX file that scores alike."""

from __future__ import annotations

import functools
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from tlp_service.engine.network import OnnxNetwork
from tlp_service.engine.plan import Plan
from tlp_service.errors import BadVersion
from tlp_service.families.loopnest.network import BaseForm, BaseNetwork
from tlp_service.families.published.network import ATTENTION_HEADS, HIDDEN, DistinctForm, PublishedNetwork

CHECKED_BATCHES = (1, 2, 7, 2048)
TOLERANCE = 1e-5

#: Where the indices of an example begin: higher than any axis or size of the form, so that they are like no other constant.
_FIRST_INDEX = 1000

_PREFIX = "network."  # of the parameters' names, for `DistinctForm` holds the network under that name


#: A network that one file holds.
SingleNetwork = PublishedNetwork | BaseNetwork


@dataclass(frozen=True, slots=True)
class Sample:
    """Candidates to compare scores by.

    Parameters
    ----------
    table : ndarray of float32, shape (rows, row width)
        Of `published`, row 0 is the padding.
    positions : ndarray of int, shape (candidates, places)
        Rows of each; of `published` padded with row 0.
    values : ndarray, shape (candidates, W)
        Nests; of `published` nothing that its network reads.
    """

    table: npt.NDArray[np.float32]
    positions: npt.NDArray[np.int32]
    values: npt.NDArray[np.floating]


def export_onnx(network: SingleNetwork, sample: Sample, path: Path) -> float:
    """Write the network as one ONNX file and prove that it scores as torch does.

    torch's exporter runs once a process and architecture; further networks are written as the same file with other weights.

    Parameters
    ----------
    network : PublishedNetwork or BaseNetwork
        The trained network.
    sample : Sample
        Candidates to check with; repeated to fill the largest batch.
    path : Path
        The file to write.

    Returns
    -------
    float
        The largest difference seen, relative to max(1, |score|).

    Raises
    ------
    BadVersion
        If ONNX Runtime, from distinct rows, and torch, from padded ones, differ by more than 1e-5 at any of
        the batch sizes 1, 2, 7, 2048.
    """
    network = network.eval().cpu()
    model = onnx.load_model_from_string(_template(*_sizes_of(network, sample)))
    weights = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    for initializer in model.graph.initializer:
        if initializer.name.startswith(_PREFIX):
            name = initializer.name.removeprefix(_PREFIX)
            initializer.CopyFrom(numpy_helper.from_array(weights.pop(name), initializer.name))
    if weights:
        raise BadVersion(f"the exported form holds no {', '.join(weights)}")
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return check_equal(network, sample, path)


def nest_width_of(path: Path) -> int:
    """Return how many numbers of a nest an exported network reads; 0 of one that reads none."""
    inputs = {value.name: value.type.tensor_type.shape.dim for value in onnx.load(str(path)).graph.input}
    return int(inputs["nests"][1].dim_value) if "nests" in inputs else 0


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights of an exported network by their names, as ``load_state_dict`` takes them."""
    return {
        initializer.name.removeprefix(_PREFIX): torch.from_numpy(numpy_helper.to_array(initializer).copy())
        for initializer in onnx.load(str(path)).graph.initializer
        if initializer.name.startswith(_PREFIX)
    }


def _sizes_of(network: SingleNetwork, sample: Sample) -> tuple[int, tuple[tuple[str, int], ...]]:
    if isinstance(network, PublishedNetwork):
        return sample.table.shape[1], ()
    return sample.table.shape[1], (("nest_width", sample.values.shape[1]), *network.architecture.items())


@functools.cache
def _template(row_width: int, sizes: tuple[tuple[str, int], ...]) -> bytes:
    """Return the exported form of some network of these sizes; its weights are named as torch names them."""
    for chatty in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    with torch.random.fork_rng():
        form = _published_form(row_width) if not sizes else _base_form(row_width, dict(sizes))
        # The exporter would drop biases of zeros, and merge equal weights.
        for tensor in form.module.state_dict().values():
            if tensor.is_floating_point():
                torch.nn.init.normal_(tensor)
            else:
                tensor.copy_(_FIRST_INDEX + torch.arange(len(tensor)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns of its own internals
        program = torch.onnx.export(
            form.module.eval(),
            form.example,
            dynamo=True,
            external_data=False,
            input_names=["rows", *(f"known_{name}" for name in form.encodings), "positions", form.values],
            output_names=[*form.encodings, "raw_scores"],
            dynamic_shapes=form.dynamic,
            verbose=False,
        )
    if program is None:
        raise BadVersion("torch exported nothing")
    model = program.model_proto
    # Take out what the exporter notes of its own run, such as stack traces with paths of this machine.
    for part in (model, model.graph, *model.graph.node, *model.graph.value_info, *model.functions):
        del part.metadata_props[:]
        part.doc_string = ""
    _name_indices(model, form.module)
    serialized: bytes = model.SerializeToString()
    return serialized


def _name_indices(model: onnx.ModelProto, module: torch.nn.Module) -> None:
    """Give tensors of indices their names back, which the exporter loses where it folds casts."""
    by_name = {initializer.name: initializer for initializer in model.graph.initializer}
    for name, tensor in module.state_dict().items():
        if name in by_name:
            continue
        expected = tensor.numpy(force=True)
        (lost,) = (
            i
            for i in by_name.values()
            if i.data_type == onnx.TensorProto.INT64 and np.array_equal(numpy_helper.to_array(i), expected)
        )
        for node in model.graph.node:
            node.input[:] = [name if given == lost.name else given for given in node.input]
        lost.name = name


@dataclass(frozen=True, slots=True)
class _Form:
    """A module to export, with an example of its inputs: sizes that differ from each other and from 0 and 1, which the exporter would take for constants."""

    module: torch.nn.Module
    encodings: tuple[str, ...]
    values: str
    example: tuple[Tensor, ...]
    dynamic: tuple[dict[int, torch.export.Dim], ...]


_NEW, _KNOWN, _CANDIDATES, _PLACES = (
    torch.export.Dim(name) for name in ("new", "known", "candidates", "places")
)


def _published_form(row_width: int) -> _Form:
    # One tensor each: the exporter takes the same one for the same input.
    heads = [torch.zeros(ATTENTION_HEADS, 7, HIDDEN[-1] // ATTENTION_HEADS) for _ in range(3)]
    positions = torch.zeros((3, 6), dtype=torch.int64)
    return _Form(
        DistinctForm(PublishedNetwork(row_width)),
        DistinctForm.encodings,
        "counts",
        (
            torch.zeros(5, row_width),
            torch.zeros(7, HIDDEN[-1]),
            *heads,
            positions,
            torch.ones(3, 6),
        ),
        (
            {0: _NEW},
            {0: _KNOWN},
            *({1: _KNOWN},) * 3,
            {0: _CANDIDATES, 1: _PLACES},
            {0: _CANDIDATES, 1: _PLACES},
        ),
    )


def _base_form(task_width: int, sizes: dict[str, int]) -> _Form:
    nest_width = sizes.pop("nest_width")
    network = BaseNetwork(task_width=task_width, **sizes)
    tasks = torch.zeros(sizes["members"], 7, sizes["width"])
    positions = torch.zeros((3, 1), dtype=torch.int64)
    return _Form(
        BaseForm(network),
        BaseForm.encodings,
        "nests",
        (torch.zeros(5, task_width), tasks, positions, torch.ones(3, nest_width)),
        ({0: _NEW}, {1: _KNOWN}, {0: _CANDIDATES}, {0: _CANDIDATES}),
    )


def check_equal(network: SingleNetwork, sample: Sample, path: Path) -> float:
    """Compare an ONNX file with the torch network; see `export_onnx`."""
    exported = OnnxNetwork(path, sample.positions.shape[1], "cpu")
    worst = 0.0
    for size in CHECKED_BATCHES:
        rows = np.resize(np.arange(len(sample.positions)), size)
        compare = _published_scores if isinstance(network, PublishedNetwork) else _base_scores
        with torch.inference_mode():
            expected, actual = compare(network, exported, sample, rows)
        difference = float(np.max(np.abs(actual - expected) / np.maximum(1.0, np.abs(expected))))
        if not difference <= TOLERANCE:
            raise BadVersion(f"{path}: differs from torch by {difference:.1e} at batch {size}")
        worst = max(worst, difference)
    return worst


_Scores = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


def _published_scores(
    network: SingleNetwork, exported: OnnxNetwork, sample: Sample, rows: npt.NDArray[np.int64]
) -> _Scores:
    batch = sample.positions[rows]
    parts = np.array_split(batch, -(-len(batch) // 64))
    expected = np.concatenate([network(torch.from_numpy(sample.table[part])).numpy() for part in parts])
    # Padding stands at the end of a candidate only, so its real rows are those before the last that is not 0.
    lengths = batch.shape[1] - np.argmax(np.flip(batch != 0, axis=1), axis=1)
    lengths[~batch.any(axis=1)] = 0
    indices = np.concatenate([row[:length] for row, length in zip(batch, lengths, strict=True)])
    plan = Plan.of(indices.astype(np.int64) - 1, lengths.astype(np.int64), batch.shape[1])
    return expected, exported.score_all(sample.table, plan)


def _base_scores(
    network: SingleNetwork, exported: OnnxNetwork, sample: Sample, rows: npt.NDArray[np.int64]
) -> _Scores:
    positions, nests = sample.positions[rows].astype(np.int64), sample.values[rows].astype(np.float32)
    of_torch = network.score_distinct(
        torch.from_numpy(sample.table), torch.from_numpy(positions), torch.from_numpy(nests)
    )
    return of_torch.numpy(), exported.score(exported.encode(sample.table), positions, nests)
