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

import torch
from torch.autograd.function import once_differentiable


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
    exact = Rotary.apply(q.float(), k.float(), cos.unsqueeze(-2).float(), sin.unsqueeze(-2).float())
    return exact[0].to(q.dtype), exact[1].to(k.dtype)


_ROTATIONS: dict[str, Callable[..., Any]] = {
    "apply_rotary_pos_emb": _rotate,
    "apply_rotary_pos_emb_vision": _rotate_in_float32,
}


class Rotary(torch.autograd.Function):
    """Queries and keys, rotated by the angles of their positions.

    The angles have no gradient. With halves a and b of the last dimension, the result is
    (a cos - b sin, b cos + a sin).

    Source: Su et al. (2021), RoFormer. The order of the operations is that of transformers'
    functions and of autograd.
    """

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(cos, sin)
        low, high = sin.chunk(2, dim=-1)
        return _turned(q, cos, low, high), _turned(k, cos, low, high)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_q: torch.Tensor, of_k: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        # Values return between the halves, so that the halves of the sine change places.
        low, high = (-sin).chunk(2, dim=-1)
        return _turned(of_q, cos, high, low), _turned(of_k, cos, high, low), None, None


def _turned(
    x: torch.Tensor, cos: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    out = x * cos
    first, second = out.chunk(2, dim=-1)
    first.sub_(b * low)
    second.add_(a * high)
    return out
