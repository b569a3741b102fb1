"""Errors of a device whose memory is full, with the field to lower."""

from __future__ import annotations

from flowtrain.config.parallel import ModuleParallel
from flowtrain.config.schema import RunConfig
from flowtrain.schedule import Action
from flowtrain.steps import FIRST_EVALUATION, step_name
from flowtrain_core import FlowTrainError


class DeviceMemoryError(FlowTrainError, RuntimeError):
    """The memory of a device is full; the message names what was computed and what to lower."""


def device_memory_error(config: RunConfig, action: Action, cause: Exception) -> DeviceMemoryError:
    """The error of an action for which the memory of the device was not enough."""
    first = str(cause).split(". ")[0]
    return DeviceMemoryError(f"{step_name(action.step)}: {_advice(config, action)} ({first})")


def _advice(config: RunConfig, action: Action) -> str:
    train, flow, parallel = config.train, config.flow, config.parallel
    if action.module == "backbone":
        return (
            "the device's memory is full in forward and backward of a microbatch; "
            f"{_recompute('backbone', parallel.backbone)}lower "
            f"train.microbatch_tokens={train.microbatch_tokens}"
        )
    keeps_steps = flow.mode != "frozen" and not flow.recompute
    if action.module == "encoder" and keeps_steps and action.step < FIRST_EVALUATION:
        kept, way_out = "a whole step", "set flow.recompute=true, which keeps those of one item"
        if flow.mode == "bounded":
            kept = f"{flow.staleness + 1} steps"
        elif flow.ranks is not None and flow.chunk_slots != 1:
            way_out = "set flow.chunk_slots=1, which keeps those of one slot"
        if flow.chunk_slots is not None:
            kept = f"{flow.chunk_slots} slots"
        return (
            f"the device's memory is full in the encoder, which keeps the activations of {kept}; "
            f"{way_out}, lower train.global_batch={train.global_batch}, or use more ranks"
        )
    if action.module == "encoder":
        return (
            "the device's memory is full in the encoder; "
            f"{_recompute('encoder', parallel.encoder) if flow.mode != 'frozen' else ''}"
            f"lower flow.item_tokens={config.item_tokens}"
        )
    return (
        "the device's memory is full in the optimizer; freeze parts of the model with model.freeze "
        "or optim.groups, keep states in host memory with optim.offload, or use fewer bytes for a "
        "parameter: now model.dtype="
        f"{config.model.dtype}, model.compute_dtype={config.model.pass_dtype}"
    )


def _recompute(module: str, parallel: ModuleParallel) -> str:
    """The level of recomputation that is left to set, in front of another way out."""
    if parallel.recompute == "full" and parallel.recompute_layers is None:
        return ""
    return f"set parallel.{module}.recompute=full for all layers, which keeps their inputs, or "
