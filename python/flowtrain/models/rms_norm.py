"""RMS norms of transformers with a backward pass of their own.

The norms of Llama, Mistral and Qwen decoders are made of seven operators, of which autograd keeps
the input and the normalized input, in float32 and in the dtype of the model. Written as one
function, a norm keeps its input and one number per row, and its backward pass makes fewer
temporary tensors. Outputs and gradients are those of the operators, to the last bit; but for those
of the core's kernel, and of torch's on a CUDA device, which are equal to rounding.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable

from flowtrain.models.one_core import array, usable
from flowtrain_core import _ops

# Their forward passes are the same.
_NORMS = frozenset(
    {
        "InternVLVisionRMSNorm",
        "LlamaRMSNorm",
        "MistralRMSNorm",
        "Qwen2RMSNorm",
        "Qwen2_5OmniRMSNorm",
        "Qwen2_5_VLRMSNorm",
        "Qwen3RMSNorm",
        "Qwen3VLMoeTextRMSNorm",
        "Qwen3VLTextRMSNorm",
    }
)


def use_own_norms(model: torch.nn.Module) -> None:
    """Let the RMS norms of a model of transformers compute `RmsNorm`; others are left alone."""
    for module in model.modules():
        if type(module).__name__ in _NORMS:
            module.forward = MethodType(_forward, module)


def _forward(norm: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    weight, eps = norm.weight, norm.variance_epsilon
    if hidden_states.is_cuda:
        return F.rms_norm(hidden_states, weight.shape, weight, eps)
    out: torch.Tensor = RmsNorm.apply(hidden_states, weight, eps)
    return out


class RmsNorm(torch.autograd.Function):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, computed in float32.

    Input and weight have the same dtype.

    Source: Zhang and Sennrich (2019), Root Mean Square Layer Normalization. The order of the
    operations is that of transformers' modules and of autograd.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if usable(x) and x.is_contiguous():
            scale = x.new_empty(*x.shape[:-1], 1)
            out = torch.empty_like(x)
            _ops.rms_norm(_rows(x), array(weight), eps, array(scale).reshape(-1), _rows(out))
            ctx.save_for_backward(x, weight, scale)
            return out
        exact = x.to(torch.float32)
        scale = torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        # Not `mul_`: if that makes the output, torch.compile of torch 2.11 loses its gradient, and
        # says nothing.
        return (exact * scale).to(x.dtype) * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        if usable(x) and x.is_contiguous():
            gradients = [
                torch.empty_like(given) if needed else None
                for given, needed in zip((x, weight), ctx.needs_input_grad, strict=False)
            ]
            _ops.rms_norm_backward(
                _rows(x),
                array(weight),
                array(scale).reshape(-1),
                _rows(gradient.contiguous()),
                None if gradients[0] is None else _rows(gradients[0]),
                None if gradients[1] is None else array(gradients[1]),
            )
            return *gradients, None
        exact = x.to(torch.float32)
        of_x = of_weight = None
        if ctx.needs_input_grad[1]:
            leading = tuple(range(x.ndim - 1))
            of_weight = (exact * scale).to(x.dtype).mul_(gradient).sum(leading)
        if ctx.needs_input_grad[0]:
            of_normalized = (gradient * weight).to(torch.float32)
            products = of_normalized * exact
            of_square = products.sum(-1, keepdim=True).mul_(-0.5).mul_(scale.pow(3))
            of_square.div_(x.shape[-1])
            torch.mul(exact, of_square.mul_(2), out=products)
            of_x = of_normalized.mul_(scale).add_(products).to(x.dtype)
        return of_x, of_weight, None


def _rows(x: torch.Tensor) -> NDArray[np.float32]:
    """Values of shape [rows, width]."""
    return array(x).reshape(-1, x.shape[-1])
