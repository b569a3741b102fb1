"""Blocks compiled by torch.compile, with their attention where it is one kernel.

What is compiled is the class's own forward: a checkpoint that recomputes the block and hooks of
FSDP2 stay around it. Elsewhere attention layers run as they are, since they make other calls for
other documents; torch compiles what is before and behind them. Either way it compiles once for rows
of any length.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch

from flowtrain.models import varlen
from flowtrain.models.family import Family


def takes_attention(device: torch.device, dtype: torch.dtype, recompute: str = "none") -> bool:
    """Whether to compile attention layers with the rest of their blocks.

    Args:
        device: Device of the blocks.
        dtype: Dtype of their passes.
        recompute: As in `ModuleParallel`. With `selective` a checkpoint keeps what attention
            returns, and it does not see what runs in a graph.
    """
    return varlen.expected(device, dtype) and recompute != "selective"


def compile_blocks(
    family: Family, module: torch.nn.Module, *, attention: bool, backend: str = "inductor"
) -> None:
    """Let torch compile the blocks of a module at their first pass; numbers are equal to rounding.

    Parameters keep their names.

    Args:
        family: Family of the model.
        module: An `Encoder` or `Backbone`, or a whole model, before it is sharded.
        attention: Whether attention layers are compiled, too; see `takes_attention`.
        backend: Backend of torch.compile.
    """
    for block in family.blocks(module):
        for layer in block.modules():
            # As the attention layers of transformers have.
            if not attention and hasattr(layer, "is_causal"):
                layer.forward = torch.compiler.disable(layer.forward)
        block.__class__ = _compiled(type(block), backend)  # type: ignore[arg-type]


@cache
def _compiled(cls: type[torch.nn.Module], backend: str) -> type[torch.nn.Module]:
    """A subclass with a compiled forward, around which transformers puts its checkpoint."""
    compiled = torch.compile(inspect.unwrap(cls.forward), backend=backend, dynamic=True)

    def forward(self: torch.nn.Module, hidden_states: torch.Tensor, *args: Any, **kw: Any) -> Any:
        # torch compiles again for views, of which a tower's first block may get one.
        if hidden_states._is_view():
            hidden_states = hidden_states.clone()
        return compiled(self, hidden_states, *args, **kw)

    return type(f"Compiled{cls.__name__}", (cls,), {"forward": forward})
