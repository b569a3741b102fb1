"""Copies from host memory to the device of a rank."""

from __future__ import annotations

import torch


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on a device for which the host does not wait; the tensor itself on a CPU.

    A copy from memory that is not pinned would wait until the device has done all work that was
    enqueued before it, and would then leave the device without work.

    Args:
        tensor: In host memory. It may change at once.
        device: Device of the result.
    """
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def send_joined(
    tensors: list[torch.Tensor] | tuple[torch.Tensor, ...], device: torch.device
) -> torch.Tensor:
    """As `send(torch.cat(tensors), device)`, but the host copies only once: to pinned memory.

    Args:
        tensors: In host memory, of one dtype; at least one. They may change at once.
        device: Device of the result.
    """
    if device.type != "cuda":
        return torch.cat(tensors).to(device)
    shape = sum(map(len, tensors)), *tensors[0].shape[1:]
    pinned = torch.empty(shape, dtype=tensors[0].dtype, pin_memory=True)
    return torch.cat(tensors, out=pinned).to(device, non_blocking=True)
