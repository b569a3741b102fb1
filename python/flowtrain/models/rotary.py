"""Rotary positions of transformers with a backward pass of their own.

Attention layers of transformers call a function of their Python module that is made of ten
operators, each with a backward operator. Here it is one function, whose backward pass is the
rotation by the opposite angle. Outputs and gradients are those of the operators, to the last bit.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable

from flowtrain.models.one_core import array, usable
from flowtrain_core._C import kernels


def use_own_rotations(model: torch.nn.Module) -> None:
    """Let the attention layers of a model of transformers compute `Rotary`; others are left alone.

    Only these modules change: transformers' function, which other models call, stays as it is.
    """
    for module in model.modules():
        if (forward := _with_own_rotation(type(module).forward)) is not None:
            module.forward = MethodType(forward, module)


@cache
def _with_own_rotation(forward: Callable[..., Any]) -> Callable[..., Any] | None:
    """A forward method that calls the function here, or None if it rotates nothing."""
    plain: Any = inspect.unwrap(forward)
    called = {name: own for name, own in _ROTATIONS.items() if name in plain.__code__.co_names}
    if not called or not plain.__module__.startswith("transformers.models."):
        return None
    own = FunctionType(plain.__code__, {**plain.__globals__, **called}, closure=plain.__closure__)
    own.__defaults__, own.__kwdefaults__ = plain.__defaults__, plain.__kwdefaults__
    return own


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
    heads_first = (x.float().transpose(0, 1) for x in (q, k))
    exact = Rotary.apply(*heads_first, cos.float()[None], sin.float()[None])
    return exact[0].transpose(0, 1).to(q.dtype), exact[1].transpose(0, 1).to(k.dtype)


_ROTATIONS: dict[str, Callable[..., Any]] = {
    "apply_rotary_pos_emb": _rotate,
    "apply_rotary_pos_emb_vision": _rotate_in_float32,
}


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
        return _turned(q, cos, sin), _turned(k, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_q: torch.Tensor, of_k: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _turned(of_q, cos, sin, back=True), _turned(of_k, cos, sin, back=True), None, None


def _turned(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, back: bool = False
) -> torch.Tensor:
    if usable(x) and x.stride(-1) == 1 and x.shape[:-3].numel() == 1:
        out = torch.empty_like(x)
        of_token = x.shape[-2:]
        kernels.rotate(
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
