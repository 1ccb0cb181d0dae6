"""From a trained network to an ONNX file that scores alike."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from torch import nn

from tlp_service.errors import BadVersion

CHECKED_BATCHES = (1, 2, 7, 2048)
TOLERANCE = 1e-5
INPUT, OUTPUT = "rows", "raw_scores"


def export_onnx(network: nn.Module, rows: npt.NDArray[np.float32], path: Path) -> float:
    """Write the network as one ONNX file and prove that it scores as torch does.

    Parameters
    ----------
    network : Module
        Maps (candidates, steps, width) to (candidates,).
    rows : ndarray of float32, shape (candidates, steps, width)
        Candidates to check with, repeated to fill the largest batch.
    path : Path
        The file to write.

    Returns
    -------
    float
        The largest difference seen, relative to max(1, |score|).

    Raises
    ------
    BadVersion
        If ONNX Runtime and torch differ by more than 1e-5 at any of the batch sizes 1, 2, 7, 2048.
    """
    network = network.eval().cpu()
    for chatty in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns of its own internals
        program = torch.onnx.export(
            network,
            # An example batch of 1 would freeze the batch.
            (torch.from_numpy(rows[:2].copy() if len(rows) > 1 else np.repeat(rows, 2, axis=0)),),
            dynamo=True,
            external_data=False,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("candidates")},),
            verbose=False,
        )
    if program is None:
        raise BadVersion("torch exported nothing")
    program.save(str(path))
    onnx.checker.check_model(str(path))
    return check_equal(network, rows, path)


def check_equal(network: nn.Module, rows: npt.NDArray[np.float32], path: Path) -> float:
    """Compare an ONNX file with the torch network; see `export_onnx`."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for size in CHECKED_BATCHES:
        batch = np.resize(rows, (size, *rows.shape[1:]))
        with torch.inference_mode():
            expected = network(torch.from_numpy(batch)).numpy()
        (actual,) = session.run([OUTPUT], {INPUT: batch})
        if actual.shape != (size,):
            raise BadVersion(f"{path}: a batch of {size} gives the shape {actual.shape}")
        difference = float(np.max(np.abs(actual - expected) / np.maximum(1.0, np.abs(expected))))
        if not difference <= TOLERANCE:
            raise BadVersion(f"{path}: differs from torch by {difference:.1e} at batch {size}")
        worst = max(worst, difference)
    return worst
