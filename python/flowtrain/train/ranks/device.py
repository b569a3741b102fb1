"""The device of a rank."""

from __future__ import annotations

import os

import torch

from flowtrain_core import FlowTrainError, Pool, cuda


class DeviceError(FlowTrainError, RuntimeError):
    """The configured device cannot be used; the message says why."""


def check_device(kind: str) -> None:
    """Check that there is a device of a kind.

    Args:
        kind: `cpu` or `cuda`.

    Raises:
        DeviceError: torch finds no CUDA device.
    """
    if kind == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            "model.device=cuda: torch finds no CUDA device; run `flowtrain doctor` for the cause, "
            "or set model.device=cpu"
        )


def choose_device(kind: str, rank: int, *, first: int) -> torch.device:
    """The device of a rank: its local rank, modulo the number of devices.

    Args:
        kind: `cpu` or `cuda`.
        rank: Rank in its world, used if LOCAL_RANK is not set.
        first: Number of devices that the ranks of the other world use before those of this world.

    Raises:
        DeviceError: torch finds no CUDA device.
    """
    if kind != "cuda":
        return torch.device(kind)
    check_device(kind)
    index = (first + int(os.environ.get("LOCAL_RANK", rank))) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    # Compute float32 models in float32: by default torch rounds inputs of convolutions to TF32.
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda", index)


def register(pool: Pool, device: torch.device) -> str:
    """Register the pool with a CUDA device, so that the device copies from and to it directly.

    Args:
        pool: This rank's handle of the pool; segments that it maps later are registered as well.
        device: Device of this rank.

    Returns:
        A line for the log; empty for a device that needs no registration.
    """
    if device.type != "cuda":
        return ""
    if reason := cuda.why_not():
        return f"pool: not registered with {device} ({reason}); the driver stages its copies"
    held = cuda.register_host(pool, device=device.index)
    return f"pool: registered with {device}, {held} bytes so far"
