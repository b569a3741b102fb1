"""Errors of a device whose memory is full, with the field to lower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from flowtrain.config.schema import RunConfig
from flowtrain.steps import FIRST_EVALUATION, step_name
from flowtrain_core import FlowTrainError


class DeviceMemoryError(FlowTrainError, RuntimeError):
    """The memory of a device is full; the message names what was computed and what to lower."""


@contextmanager
def memory_errors(config: RunConfig, kind: str, step: int) -> Iterator[None]:
    """Explain an error of a full device within the block.

    Args:
        config: The run.
        kind: What is computed: `encode`, `backbone` or `optimizer`.
        step: Step of the plan.

    Raises:
        DeviceMemoryError: The memory of the device is full.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        cause = str(error).split(". ")[0]
        raise DeviceMemoryError(
            f"{step_name(step)}: {_advice(config, kind, step)} ({cause})"
        ) from error


def _advice(config: RunConfig, kind: str, step: int) -> str:
    train, flow = config.train, config.flow
    if kind == "backbone":
        return (
            "the device's memory is full in forward and backward of a microbatch; lower "
            f"train.microbatch_tokens={train.microbatch_tokens}"
        )
    keeps_steps = flow.mode != "frozen" and not flow.recompute
    if kind == "encode" and keeps_steps and step < FIRST_EVALUATION:
        kept = "a whole step" if flow.mode == "strict" else f"{flow.staleness + 1} steps"
        return (
            f"the device's memory is full in the encoder, which keeps the activations of {kept}; "
            "set flow.recompute=true, which keeps those of one item, lower "
            f"train.global_batch={train.global_batch}, or use more ranks"
        )
    if kind == "encode":
        return (
            f"the device's memory is full in the encoder; lower flow.item_tokens={flow.item_tokens}"
        )
    return (
        "the device's memory is full in the optimizer; freeze parts of the model with model.freeze "
        "or optim.groups, or use fewer bytes for a parameter: now model.dtype="
        f"{config.model.dtype}, optim.master_weights={config.optim.master_weights}"
    )
