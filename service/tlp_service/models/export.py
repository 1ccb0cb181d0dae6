"""From a trained network to an ONNX file that scores alike."""

from __future__ import annotations

import functools
import logging
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from tlp_service.errors import BadVersion
from tlp_service.models.published import ATTENTION_HEADS, HIDDEN, DistinctForm, PublishedNetwork
from tlp_service.scoring.network import OnnxNetwork
from tlp_service.scoring.plan import Plan

CHECKED_BATCHES = (1, 2, 7, 2048)
TOLERANCE = 1e-5

_PREFIX = "network."  # of the parameters' names, for `DistinctForm` holds the network under that name


def export_onnx(
    network: PublishedNetwork,
    table: npt.NDArray[np.float32],
    positions: npt.NDArray[np.int32],
    path: Path,
) -> float:
    """Write the network as one ONNX file and prove that it scores as torch does.

    torch's exporter runs once a process and row width; further networks are written as the same file with other weights.

    Parameters
    ----------
    network : PublishedNetwork
        The trained network.
    table : ndarray of float32, shape (rows, row width)
        Row 0 is the padding.
    positions : ndarray of int, shape (candidates, steps)
        Candidates to check with, padded with row 0; repeated to fill the largest batch.
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
    model = onnx.load_model_from_string(_template(table.shape[1]))
    weights = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    for initializer in model.graph.initializer:
        if initializer.name.startswith(_PREFIX):
            name = initializer.name.removeprefix(_PREFIX)
            initializer.CopyFrom(numpy_helper.from_array(weights.pop(name), initializer.name))
    if weights:
        raise BadVersion(f"the exported form holds no {', '.join(weights)}")
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return check_equal(network, table, positions, path)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights of an exported network by their names, as ``load_state_dict`` takes them."""
    return {
        initializer.name.removeprefix(_PREFIX): torch.from_numpy(numpy_helper.to_array(initializer).copy())
        for initializer in onnx.load(str(path)).graph.initializer
        if initializer.name.startswith(_PREFIX)
    }


@functools.cache
def _template(row_width: int) -> bytes:
    """Return the exported form of some network; its weights are named as torch names them."""
    for chatty in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    with torch.random.fork_rng():
        network = PublishedNetwork(row_width)
        for parameter in network.parameters():
            torch.nn.init.normal_(
                parameter
            )  # the exporter would drop biases of zeros, and merge equal weights
    # Sizes that differ from each other and from 0 and 1, which the exporter would take for constants.
    example = (
        torch.zeros(5, row_width),
        torch.zeros(7, HIDDEN[-1]),
        *(torch.zeros(ATTENTION_HEADS, 7, HIDDEN[-1] // ATTENTION_HEADS) for _ in range(3)),
        torch.zeros((3, 6), dtype=torch.int64),
        torch.ones(3, 6),
    )
    new, known, candidates, places = (torch.export.Dim(n) for n in ("new", "known", "candidates", "places"))
    of_heads, of_candidates = {1: known}, {0: candidates, 1: places}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns of its own internals
        program = torch.onnx.export(
            DistinctForm(network).eval(),
            example,
            dynamo=True,
            external_data=False,
            input_names=[
                "rows",
                *(f"known_{name}" for name in DistinctForm.encodings),
                "positions",
                "counts",
            ],
            output_names=[*DistinctForm.encodings, "raw_scores"],
            dynamic_shapes=(
                {0: new},
                {0: known},
                of_heads,
                of_heads,
                of_heads,
                of_candidates,
                of_candidates,
            ),
            verbose=False,
        )
    if program is None:
        raise BadVersion("torch exported nothing")
    model = program.model_proto
    # Take out what the exporter notes of its own run, such as stack traces with paths of this machine.
    for part in (model, model.graph, *model.graph.node, *model.graph.value_info, *model.functions):
        del part.metadata_props[:]
        part.doc_string = ""
    serialized: bytes = model.SerializeToString()
    return serialized


def check_equal(
    network: PublishedNetwork,
    table: npt.NDArray[np.float32],
    positions: npt.NDArray[np.int32],
    path: Path,
) -> float:
    """Compare an ONNX file with the torch network; see `export_onnx`."""
    exported = OnnxNetwork(path, positions.shape[1], "cpu")
    worst = 0.0
    for size in CHECKED_BATCHES:
        batch = np.resize(positions, (size, positions.shape[1]))
        with torch.inference_mode():
            expected = np.concatenate(
                [
                    network(torch.from_numpy(table[part])).numpy()
                    for part in np.array_split(batch, -(-size // 64))
                ]
            )
        # Padding stands at the end of a candidate only, so its real rows are those before the last that is not 0.
        lengths = positions.shape[1] - np.argmax(np.flip(batch != 0, axis=1), axis=1)
        lengths[~batch.any(axis=1)] = 0
        indices = np.concatenate([row[:length] for row, length in zip(batch, lengths, strict=True)])
        plan = Plan.of(indices.astype(np.int64) - 1, lengths.astype(np.int64), positions.shape[1])
        actual = exported.score_all(table, plan)
        difference = float(np.max(np.abs(actual - expected) / np.maximum(1.0, np.abs(expected))))
        if not difference <= TOLERANCE:
            raise BadVersion(f"{path}: differs from torch by {difference:.1e} at batch {size}")
        worst = max(worst, difference)
    return worst
