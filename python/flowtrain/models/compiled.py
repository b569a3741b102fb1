"""Blocks compiled by torch.compile, but for their attention.

What is compiled is the class's own forward: a checkpoint that recomputes the block and hooks of
FSDP2 stay around it. Attention has kernels already, and rows of any lengths, so that its layers run
as they are; torch compiles what is before and behind them, once for rows of any length.
"""

from __future__ import annotations

import inspect
from functools import cache

import torch

from flowtrain.models.family import Family


def compile_blocks(family: Family, module: torch.nn.Module, *, backend: str = "inductor") -> None:
    """Let torch compile the blocks of a module at their first pass; numbers are equal to rounding.

    Parameters keep their names.

    Args:
        family: Family of the model.
        module: An `Encoder` or `Backbone`, or a whole model, before it is sharded.
        backend: Backend of torch.compile.
    """
    for block in family.blocks(module):
        for layer in block.modules():
            if hasattr(layer, "is_causal"):  # As the attention layers of transformers have.
                layer.forward = torch.compiler.disable(layer.forward)
        block.__class__ = _compiled(type(block), backend)  # type: ignore[arg-type]


@cache
def _compiled(cls: type[torch.nn.Module], backend: str) -> type[torch.nn.Module]:
    """A subclass with a compiled forward, around which transformers puts its checkpoint."""
    forward = torch.compile(inspect.unwrap(cls.forward), backend=backend, dynamic=True)
    return type(f"Compiled{cls.__name__}", (cls,), {"forward": forward})
