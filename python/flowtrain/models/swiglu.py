"""Gated MLPs of transformers with a backward pass of their own.

Of silu(gate) * up autograd keeps gate, up and silu(gate). Written as one function it keeps gate and
up, and computes silu(gate) again. With the product, which the next linear layer keeps, these are
three tensors of the width of the MLP instead of four. Outputs and gradients are those of the
operators, to the last bit; but for those of the core's kernel, which are equal to rounding.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from transformers.activations import SiLUActivation

from flowtrain.models.one_core import array, usable
from flowtrain_core import _ops

# Their forward passes are the same.
_MLPS = frozenset(
    {
        "LlamaMLP",
        "MistralMLP",
        "Qwen2MLP",
        "Qwen2_5OmniMLP",
        "Qwen2_5_VLMLP",
        "Qwen3MLP",
        "Qwen3VLMoeTextMLP",
        "Qwen3VLTextMLP",
    }
)


def use_own_mlps(model: torch.nn.Module) -> None:
    """Let the gated MLPs of a model of transformers compute `SwiGlu`; others are left alone."""
    for module in model.modules():
        if type(module).__name__ in _MLPS and isinstance(module.act_fn, _SILU):
            module.forward = MethodType(_forward, module)


_SILU = (SiLUActivation, torch.nn.SiLU)


def _forward(mlp: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    product = SwiGlu.apply(mlp.gate_proj(hidden_states), mlp.up_proj(hidden_states))
    out: torch.Tensor = mlp.down_proj(product)
    return out


class SwiGlu(torch.autograd.Function):
    """silu(gate) * up, where silu(x) = x / (1 + e^-x).

    Both have the same shape and dtype.

    Source: Shazeer (2020), GLU Variants Improve Transformer. The order of the operations is that of
    transformers' modules and of autograd.
    """

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        if _usable(gate, up):
            out = torch.empty_like(gate)
            _ops.swiglu(array(gate), array(up), array(out))
            return out
        # Not `mul_`: if that makes the output, torch.compile of torch 2.11 loses its gradient, and
        # says nothing.
        return F.silu(gate) * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        if _usable(gate, up):
            of_gate, of_up = torch.empty_like(gate), torch.empty_like(up)
            arrays = (array(x) for x in (gate, up, gradient.contiguous(), of_gate, of_up))
            _ops.swiglu_backward(*arrays)
            return of_gate, of_up
        return (
            torch.ops.aten.silu_backward(gradient * up, gate),
            F.silu(gate).mul_(gradient),
        )


def _usable(gate: torch.Tensor, up: torch.Tensor) -> bool:
    return usable(gate) and gate.is_contiguous() and up.is_contiguous()
