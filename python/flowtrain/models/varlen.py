"""Attention of packed documents on a CUDA device, one kernel for all: FlashAttention-4, or torch's.

torch added `window_size` and `scale` after 2.10, and `enable_gqa` later. Without the first two
`usable` is false; without `enable_gqa` keys and values are repeated.
"""

from __future__ import annotations

import inspect
import math
from functools import cache
from typing import Any

import torch

from flowtrain.models import flash4
from flowtrain.models.documents import Documents

# Limits of the flash kernels.
_DTYPES = (torch.float16, torch.bfloat16)
_HEAD_DIM_MULTIPLE = 8
_MAX_HEAD_DIM = 256


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
@cache
def _parameters() -> frozenset[str]:
    """Parameters of torch's function; empty if this torch has no such function."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


def kernel() -> Any | None:
    """The operator that torch's function calls; None if this torch has no such function."""
    return torch.ops.torch_attn._varlen_attn.default if _parameters() else None


def usable(query: torch.Tensor, *, dropout: float) -> bool:
    """Whether the kernel supports this call.

    Args:
        query: Shape [1, heads, tokens, head_dim].
        dropout: Probability; the kernel supports only 0.
    """
    return (
        query.is_cuda
        and query.dtype in _DTYPES
        and query.shape[-1] % _HEAD_DIM_MULTIPLE == 0
        and query.shape[-1] <= _MAX_HEAD_DIM
        and query.shape[2] > 0
        and dropout == 0.0
        and (flash4.usable(query.device) or _parameters() >= {"window_size", "scale"})
    )


def expected(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether calls without dropout, and with heads of a usual size, will be this kernel."""
    return device.type == "cuda" and dtype in _DTYPES


def library(device: torch.device, dtype: torch.dtype) -> str:
    """The library whose kernel computes attention on a device; empty without such a kernel."""
    if not expected(device, dtype):
        return ""
    return "FlashAttention-4" if flash4.usable(device) else "torch"


def named(device: torch.device, dtype: torch.dtype) -> str:
    """Line for the log: by which kernel a device computes attention; empty for others."""
    name = library(device, dtype)
    faster = "; on GPUs from Hopper on, flash-attn-4 of PyPI is faster" if name == "torch" else ""
    return name and f"attention: by {name}{faster}"


def varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    documents: Documents,
    *,
    scaling: float | None,
    causal: bool,
) -> torch.Tensor:
    """Attention of each document to itself.

    Args:
        query: Shape [1, heads, tokens, head_dim], on a CUDA device.
        key: Shape [1, kv_heads, tokens, head_dim].
        value: Shape [1, kv_heads, tokens, head_dim].
        documents: Documents of the row.
        scaling: Factor of the scores; None for 1 / sqrt(head_dim).
        causal: Whether a token attends only to itself and the tokens before it.

    Returns:
        Shape [1, tokens, heads, head_dim].
    """
    boundaries, longest = documents.boundaries(query.device), documents.longest
    # Not `x[0]`, whose gradient is copied into zeros of the size of `x`.
    query, key, value = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    if flash4.usable(query.device):
        scale = 1 / math.sqrt(query.shape[-1]) if scaling is None else scaling
        return flash4.attend(query, key, value, boundaries, longest, scale, causal)[0][None]
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {}
    if query.shape[1] != key.shape[1]:
        if "enable_gqa" in _parameters():
            options["enable_gqa"] = True
        else:
            repeats = query.shape[1] // key.shape[1]
            key = key.repeat_interleave(repeats, dim=1)
            value = value.repeat_interleave(repeats, dim=1)
    out = varlen_attn(
        query,
        key,
        value,
        boundaries,
        boundaries,
        longest,
        longest,
        scale=scaling,
        window_size=(-1, 0) if causal else (-1, -1),
        **options,
    )
    assert isinstance(out, torch.Tensor)
    return out[None]
