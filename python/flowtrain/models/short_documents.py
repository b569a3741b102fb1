"""Attention of short packed documents on a CPU: one kernel for all, on one core.

torch's kernel would be called once for each length of document, and what a call prepares for each
document and head takes longer than the scores of some tens of tokens.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable

from flowtrain.models import one_core
from flowtrain.models.documents import Documents
from flowtrain_core import _ops

# Up to here the kernel takes 0.3 to 1.2 times as long as torch's (heads of 32, 72 and 128 values,
# equal and different lengths, on one core with AVX-512). Beyond, torch's wins if not causal.
_LONGEST = 128


def usable(query: torch.Tensor, documents: Documents, *, dropout: float) -> bool:
    """Whether the kernel supports this call, and torch's would be slower.

    Args:
        query: Shape [1, heads, tokens, head_dim].
        documents: Documents of the row.
        dropout: Probability; the kernel supports only 0.
    """
    return (
        one_core.usable(query)
        and dropout == 0.0
        and 0 < documents.longest <= _LONGEST
        and min(documents.lengths) > 0
    )


def attend(
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
        query: Shape [1, heads, tokens, head_dim].
        key: Shape [1, kv_heads, tokens, head_dim].
        value: Shape [1, kv_heads, tokens, head_dim].
        documents: Documents of the row.
        scaling: Factor of the scores; None for 1 / sqrt(head_dim).
        causal: Whether a token attends only to itself and the tokens before it.

    Returns:
        Shape [1, tokens, heads, head_dim].
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scaling is None else scaling
    out: torch.Tensor = _Attention.apply(query, key, value, documents.lengths, scale, causal)
    return out.transpose(1, 2)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: list[int],
    scale: float,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    _, heads, tokens, head_dim = query.shape
    out = query.new_empty(1, tokens, heads, head_dim).transpose(1, 2)
    log_sums = query.new_empty(heads, tokens)
    call = np.array(lengths, np.int64), scale, causal
    _ops.attention(_array(query), _array(key), _array(value), *call, _array(out), log_sums.numpy())
    return out, log_sums


# An operator, so that selective recomputation can keep what it returns.
_LIBRARY = torch.library.Library("flowtrain", "DEF")
_LIBRARY.define(
    "short_documents(Tensor query, Tensor key, Tensor value, int[] lengths, float scale, "
    "bool causal) -> (Tensor out, Tensor log_sums)"
)
_LIBRARY.impl("short_documents", _attend, "CPU")
KERNEL = torch.ops.flowtrain.short_documents.default
"""The forward pass of the kernel as an operator of torch."""


class _Attention(torch.autograd.Function):
    """Output of shape [1, heads, tokens, head_dim], in the memory of [1, tokens, heads, head_dim].

    As flash attention, it keeps one number for each row of scores, and computes the scores again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        lengths: list[int],
        scale: float,
        causal: bool,
    ) -> torch.Tensor:
        q, k, v = (_with_contiguous_rows(x) for x in (query, key, value))
        out: torch.Tensor
        out, log_sums = KERNEL(q, k, v, lengths, scale, causal)
        ctx.call = np.array(lengths, np.int64), scale, causal
        ctx.save_for_backward(q, k, v, out, log_sums)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, log_sums = ctx.saved_tensors
        lengths, scale, causal = ctx.call
        of_q, of_k, of_v = (torch.empty_like(x) for x in (q, k, v))
        _ops.attention_backward(
            _array(q),
            _array(k),
            _array(v),
            lengths,
            scale,
            causal,
            _array(out),
            log_sums.numpy(),
            _array(_with_contiguous_rows(of_out)),
            _array(of_q),
            _array(of_k),
            _array(of_v),
        )
        return of_q, of_k, of_v, None, None, None


def _with_contiguous_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _array(x: torch.Tensor) -> NDArray[np.float32]:
    """View of shape [heads, tokens, head_dim]."""
    return one_core.array(x)[0]
