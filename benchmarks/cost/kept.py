"""Bytes that autograd keeps of a forward pass: the storages of saved tensors, each counted once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


class _Kept:
    """A saved tensor, which lives as long as the graph that saved it."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


@contextmanager
def recomputed(model: Any) -> Iterator[list[torch.Tensor]]:
    """Within the block, blocks of the tower and decoder layers are recomputed.

    Yields:
        Tensors besides their inputs that the recomputation needs, such as rotary positions.
    """
    held: list[torch.Tensor] = []

    def recompute(function: Any, *inputs: Any) -> Any:
        out = checkpoint(function, *inputs, use_reentrant=False)
        if out.requires_grad:
            held.extend(x for x in tree_leaves(function.keywords) if isinstance(x, torch.Tensor))
        return out

    layers = [x for x in model.modules() if isinstance(x, GradientCheckpointingLayer)]
    for layer in layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = recompute
    try:
        yield held
    finally:
        for layer in layers:
            layer.gradient_checkpointing = False


def kept_bytes(model: Any, forward: Callable[[], Any], *, recompute: bool = False) -> int:
    """Bytes that the graph of a forward pass keeps.

    Parameters and buffers are left out, and so is what belongs to a graph that is gone when
    `forward` returns.

    Args:
        model: The model.
        forward: Returns whatever holds the graph.
        recompute: Whether blocks of the tower and decoder layers keep only their input.
    """
    own = [*model.parameters(), *model.buffers()]
    known = {tensor.untyped_storage().data_ptr() for tensor in own}
    alive: weakref.WeakSet[_Kept] = weakref.WeakSet()

    def pack(tensor: torch.Tensor) -> _Kept:
        kept = _Kept(tensor)
        alive.add(kept)
        return kept

    with (
        recomputed(model) if recompute else nullcontext([]) as held,
        torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor),
    ):
        graph = forward()
    storages = [x.untyped_storage() for x in (*(kept.tensor for kept in alive), *held)]
    found = {x.data_ptr(): x.nbytes() for x in storages if x.data_ptr() not in known}
    del graph
    return sum(found.values())
