"""Training in several processes under torchrun: each computes a part of every batch, and all gradients are averaged.

The processes draw the same batches from the same seed, and take the same step, so their networks stay equal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed, nn


def world_size() -> int:
    """Return how many processes train together; 1 without torchrun."""
    return distributed.get_world_size() if _is_on() else 1


def rank() -> int:
    """Return the number of this process among them."""
    return distributed.get_rank() if _is_on() else 0


@contextmanager
def processes(device: str) -> Iterator[str]:
    """Join the processes that torchrun has started, if it has, and return this one's device.

    Parameters
    ----------
    device : str
        ``cpu``, or ``cuda``, of which each process of a machine gets its own.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield device
        return
    distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" else device
    finally:
        distributed.destroy_process_group()


def average_gradients(network: nn.Module) -> None:
    """Replace each gradient by its mean over the processes.

    A weight that took no part, such as another platform's head, counts with a gradient of 0.
    """
    for parameter in network.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    if world_size() == 1:
        return
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= world_size()
    for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def _is_on() -> bool:
    return distributed.is_available() and distributed.is_initialized()
