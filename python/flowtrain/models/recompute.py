"""Recomputation of blocks in the backward pass, by the switch that transformers' layers have.

It wraps what a layer's `forward` computes. Hooks of the layer, such as those by which FSDP2 gathers
its weights, stay outside and run once; those of the modules in it run again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from transformers.modeling_layers import GradientCheckpointingLayer

from flowtrain.config.checks import require
from flowtrain.config.parallel import ModuleParallel, ParallelConfig
from flowtrain.cost.flops import Side
from flowtrain.models import flash4, short_documents, varlen
from flowtrain.models.errors import ModelError
from flowtrain.models.family import Family


def check_recompute(parallel: ParallelConfig, family: Family) -> None:
    """Check the numbers of recomputed layers against the model.

    Raises:
        ConfigError: A module has fewer layers.
    """
    for side in get_args(Side):
        layers, asked = len(family.block_names(side)), parallel.of(side).recompute_layers
        require(
            asked is None or asked <= layers,
            f"parallel.{side}.recompute_layers={asked}: the {side} computes {layers} layers; give "
            "at most as many, or null for all",
        )


def recompute_blocks(family: Family, module: torch.nn.Module, parallel: ModuleParallel) -> None:
    """Let the blocks of a module compute again in the backward pass what they would keep.

    With `selective` they keep the outputs of their attention, and with `full` only their input.
    Numbers are the same, and so are dropout masks. Without gradients nothing changes. Parameters
    keep their names.

    Args:
        family: Family of the model.
        module: An `Encoder` or `Backbone`, before it is sharded.
        parallel: Says which blocks, and what they keep.

    Raises:
        ModelError: A block has no such switch.
    """
    if parallel.recompute == "none":
        return
    options: dict[str, Any] = {}
    if parallel.recompute == "selective":
        options["context_fn"] = attention_kept()
    for block in family.blocks(module)[: parallel.recompute_layers]:
        if not isinstance(block, GradientCheckpointingLayer):
            raise ModelError(
                f"{type(block).__name__}: it is no GradientCheckpointingLayer of transformers, "
                "which recomputation needs; set parallel.encoder.recompute or "
                "parallel.backbone.recompute to none"
            )
        switch: Any = block
        switch.gradient_checkpointing = True
        switch._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, **options)


def attention_kept() -> Callable[[], Any]:
    """Contexts of a checkpoint that keeps what the kernels of attention return."""
    aten = torch.ops.aten
    kept = [
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
        short_documents.KERNEL,
        flash4.KERNEL,
    ]
    if (kernel := varlen.kernel()) is not None:
        kept.append(kernel)
    return partial(create_selective_checkpoint_contexts, kept)
