"""From a trained network to an ONNX file that scores alike."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch

from tlp_service.errors import BadVersion
from tlp_service.models.published import ENCODED_WIDTH, DistinctForm, PublishedNetwork
from tlp_service.scoring.session import RawScorer

CHECKED_BATCHES = (1, 2, 7, 2048)
TOLERANCE = 1e-5


def export_onnx(
    network: PublishedNetwork,
    table: npt.NDArray[np.float32],
    positions: npt.NDArray[np.int32],
    path: Path,
) -> float:
    """Write the network as one ONNX file and prove that it scores as torch does.

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
    for chatty in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    # Sizes that differ from each other and from 0 and 1, which the exporter would take for constants.
    example = (
        torch.zeros(5, table.shape[1]),
        torch.zeros(7, ENCODED_WIDTH),
        torch.zeros((3, 6), dtype=torch.int64),
        torch.ones(3, 6),
    )
    new, known, candidates, places = (torch.export.Dim(n) for n in ("new", "known", "candidates", "places"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns of its own internals
        program = torch.onnx.export(
            DistinctForm(network).eval(),
            example,
            dynamo=True,
            external_data=False,
            input_names=["rows", "known", "positions", "counts"],
            output_names=["encoded", "raw_scores"],
            dynamic_shapes=({0: new}, {0: known}, {0: candidates, 1: places}, {0: candidates, 1: places}),
            verbose=False,
        )
    if program is None:
        raise BadVersion("torch exported nothing")
    program.save(str(path))
    _strip(path)
    onnx.checker.check_model(str(path))
    return check_equal(network, table, positions, path)


def _strip(path: Path) -> None:
    """Take out what the exporter notes of its own run, such as stack traces with paths of this machine."""
    model = onnx.load(str(path))
    for part in (model, model.graph, *model.graph.node, *model.graph.value_info, *model.functions):
        del part.metadata_props[:]
        part.doc_string = ""
    onnx.save(model, str(path))


def check_equal(
    network: PublishedNetwork,
    table: npt.NDArray[np.float32],
    positions: npt.NDArray[np.int32],
    path: Path,
) -> float:
    """Compare an ONNX file with the torch network; see `export_onnx`."""
    scorer = RawScorer(path, positions.shape[1], "cpu")
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
        lengths = positions.shape[1] - np.argmax(np.flip(batch != 0, axis=1), axis=1) * batch.any(axis=1)
        lengths[~batch.any(axis=1)] = 0
        indices = np.concatenate([row[:length] for row, length in zip(batch, lengths, strict=True)])
        actual = scorer.run(table, indices.astype(np.int64) - 1, lengths.astype(np.int64))
        difference = float(np.max(np.abs(actual - expected) / np.maximum(1.0, np.abs(expected))))
        if not difference <= TOLERANCE:
            raise BadVersion(f"{path}: differs from torch by {difference:.1e} at batch {size}")
        worst = max(worst, difference)
    return worst
