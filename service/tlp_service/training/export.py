"""Exports a trained network as an ONNX file, and checks that both give the same scores."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from tlp_service.errors import BadVersion
from tlp_service.inference.network import OnnxNetwork
from tlp_service.training.form import Sample
from tlp_service.training.network import ExportableNetwork

CHECKED_BATCHES = (1, 2, 7, 2048)
TOLERANCE = 1e-5

#: First index of an example's positions: greater than any axis or size of the form, so that it differs from all other
#: constants.
_FIRST_INDEX = 1000

#: Of the names of weights, since a form holds its network under that name.
_PREFIX = "network."

#: Exported forms by class and sizes of the network.
_TEMPLATES: dict[tuple[object, ...], bytes] = {}


def export_onnx(network: ExportableNetwork, sample: Sample, path: Path) -> float:
    """Write the network as one ONNX file and prove that it scores as torch does.

    torch's exporter runs once per process and architecture. Further networks are written by replacing the weights in
    that file.

    Parameters
    ----------
    network : ExportableNetwork
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
    model = onnx.load_model_from_string(_template_of(network, sample))
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


def value_width_of(path: Path) -> int | None:
    """Return how many values of a candidate an exported network reads; None if as many as places."""
    return OnnxNetwork(path, "cpu").value_width


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights of an exported network by their names, as ``load_state_dict`` takes them."""
    return {
        initializer.name.removeprefix(_PREFIX): torch.from_numpy(numpy_helper.to_array(initializer).copy())
        for initializer in onnx.load(str(path)).graph.initializer
        if initializer.name.startswith(_PREFIX)
    }


def _template_of(network: ExportableNetwork, sample: Sample) -> bytes:
    """Return the exported form of some network of the same sizes; its weights are named as torch names them."""
    sizes = (type(network), sample.table.shape[1], sample.values.shape[1], *network.architecture.items())
    if sizes not in _TEMPLATES:
        _TEMPLATES[sizes] = _export(network, sample)
    return _TEMPLATES[sizes]


def _export(network: ExportableNetwork, sample: Sample) -> bytes:
    for chatty in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    with torch.random.fork_rng():
        form = network.form(sample.table.shape[1], sample.values.shape[1])
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


def check_equal(network: ExportableNetwork, sample: Sample, path: Path) -> float:
    """Compare an ONNX file with the torch network; see `export_onnx`."""
    exported = OnnxNetwork(path, "cpu")
    worst = 0.0
    for size in CHECKED_BATCHES:
        rows = np.resize(np.arange(len(sample.positions)), size)
        with torch.inference_mode():
            expected, actual = network.compare(exported, sample, rows)
        difference = float(np.max(np.abs(actual - expected) / np.maximum(1.0, np.abs(expected))))
        if not difference <= TOLERANCE:
            raise BadVersion(f"{path}: differs from torch by {difference:.1e} at batch {size}")
        worst = max(worst, difference)
    return worst
