"""Rotary positions of transformers with a backward pass of their own.

Attention layers of transformers call a function of their Python module that is made of ten
operators, each with a backward operator. Here it is one function, whose backward pass is the
rotation by the opposite angle. Outputs and gradients are those of the operators, to the last bit;
but for those of the core's kernel for CUDA devices, which rounds once where they round three times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable

from flowtrain.models.one_core import array, usable
from flowtrain_core import _C, _ops, cuda

_ON_DEVICE = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}
"""Dtypes of the kernel for CUDA devices."""


def _rotate(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `apply_rotary_pos_emb` of decoders."""
    rotated: tuple[torch.Tensor, torch.Tensor] = Rotary.apply(
        q, k, cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    )
    return rotated


def _rotate_in_float32(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `apply_rotary_pos_emb_vision` of the towers of Qwen."""
    heads_first = [x.transpose(0, 1) for x in (q, k)]
    angles = cos.float()[None], sin.float()[None]
    # The kernel for CUDA devices computes in float32 whatever it is given.
    if not _on_device(heads_first[0], heads_first[1], angles[0]):
        heads_first = [x.float() for x in heads_first]
    exact = Rotary.apply(*heads_first, *angles)
    return exact[0].transpose(0, 1).to(q.dtype), exact[1].transpose(0, 1).to(k.dtype)


ROTATIONS: dict[str, Callable[..., Any]] = {
    "apply_rotary_pos_emb": _rotate,
    "apply_rotary_pos_emb_vision": _rotate_in_float32,
}
"""Functions by the names of transformers' functions whose place they take."""


class Rotary(torch.autograd.Function):
    """Queries and keys, rotated by the angles of their positions.

    Queries and keys have shape [..., heads, tokens, head_dim], and the angles one head and no
    gradient. With halves a and b of the last dimension, the result is
    (a cos - b sin, b cos + a sin).

    Source: Su et al. (2021), RoFormer. The order of the operations is that of transformers'
    functions and of autograd.
    """

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(cos, sin)
        return _both_turned(q, k, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_q: torch.Tensor, of_k: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return *_both_turned(of_q, of_k, cos, sin, back=True), None, None


def _both_turned(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, back: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    if not _on_device(q, k, cos):
        return _turned(q, cos, sin, back=back), _turned(k, cos, sin, back=back)
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    turned = torch.empty_like(q), torch.empty_like(k)
    tokens, head_dim = q.shape[-2:]
    cos, sin = (angles.reshape(tokens, head_dim).contiguous() for angles in (cos, sin))
    cuda.rotate(
        _places(q, turned[0]),
        _places(k, turned[1]),
        _ON_DEVICE[q.dtype],
        cos.data_ptr(),
        sin.data_ptr(),
        _ON_DEVICE[cos.dtype],
        tokens=tokens,
        head_dim=head_dim,
        back=back,
        device=q.device.index,
        stream=torch.cuda.current_stream(q.device).cuda_stream,
    )
    return turned


def _on_device(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor) -> bool:
    """Whether the core's kernel for CUDA devices rotates these."""
    return (
        not torch.compiler.is_compiling()
        and _C.cuda_built
        and q.is_cuda
        and q.dtype == k.dtype
        and q.dtype in _ON_DEVICE
        and cos.dtype in _ON_DEVICE
        and q.shape[:-3].numel() == 1
        and q.shape[-2:] == k.shape[-2:]
        and cos.numel() == q.shape[-2:].numel()
        and type(q) is torch.Tensor
    )


def _places(x: torch.Tensor, turned: torch.Tensor) -> tuple[int, int, int, int, int, int, int]:
    """Addresses, distances of tokens and heads, and heads, as the kernel takes them."""
    return (
        *(x.data_ptr(), x.stride(-2), x.stride(-3)),
        *(turned.data_ptr(), turned.stride(-2), turned.stride(-3)),
        x.shape[-3],
    )


def _turned(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, back: bool = False
) -> torch.Tensor:
    if usable(x) and x.stride(-1) == 1 and x.shape[:-3].numel() == 1:
        out = torch.empty_like(x)
        of_token = x.shape[-2:]
        _ops.rotate(
            _heads(x), array(cos).reshape(of_token), array(sin).reshape(of_token), _heads(out), back
        )
        return out
    low, high = sin.chunk(2, dim=-1)
    if back:  # Values return between the halves, so that the halves of the sine change places.
        low, high = -high, -low
    a, b = x.chunk(2, dim=-1)
    out = x * cos
    first, second = out.chunk(2, dim=-1)
    first.sub_(b * low)
    second.add_(a * high)
    return out


def _heads(x: torch.Tensor) -> NDArray[np.float32]:
    """Values of shape [heads, tokens, head_dim]."""
    values = array(x)
    return values[(0,) * (x.ndim - 3)]
