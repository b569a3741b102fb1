"""Attention over packed documents, at the cost of the documents one by one.

One function is registered with transformers' attention interface. Document boundaries are an
argument of the call (`cu_seq_lens_q`), never global state. No dense mask is built: for a packed
row of 16 equal documents, masked attention would cost 16 times as much. In half precision on a
CUDA device one kernel computes all documents (`varlen.py`); otherwise each document is computed on
its own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from flowtrain.models.errors import ModelError
from flowtrain.models.varlen import usable, varlen

NAME = "flowtrain_varlen"


def varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of each document to itself.

    Args:
        module: The attention layer; its `is_causal` is the default of the argument.
        query: Shape [1, heads, tokens, head_dim].
        key: Shape [1, kv_heads, tokens, head_dim].
        value: Shape [1, kv_heads, tokens, head_dim].
        attention_mask: Must be None, as the boundaries take its place.
        scaling: Factor of the scores.
        dropout: Probability; 0 outside training.
        is_causal: Whether a token attends only to itself and the tokens before it.
        cu_seq_lens_q: Document boundaries on the host, from 0 to tokens, shape
            [documents + 1]. A non-causal call without them is one document, as the vision tower
            calls this function once per image.

    Returns:
        Shape [1, tokens, heads, head_dim], and None for the weights.

    Raises:
        ModelError: A causal call has no boundaries, or a call has a mask or a batch above 1.
    """
    causal = bool(module.is_causal) if is_causal is None else is_causal
    if attention_mask is not None or query.shape[0] != 1:
        raise ModelError(
            f"{NAME}: attention_mask must be None and the batch 1 (got batch {query.shape[0]}); "
            "pack documents into one row and give their boundaries"
        )
    if cu_seq_lens_q is None:
        if causal:
            raise ModelError(
                f"{NAME}: a causal call needs cu_seq_lens_q; without it documents of the row would "
                "see each other"
            )
        lengths = [query.shape[2]]
    else:
        lengths = cu_seq_lens_q.diff().tolist()
    if len(lengths) > 1 and usable(query, dropout=dropout):
        return varlen(query, key, value, lengths, scaling=scaling, causal=causal), None
    grouped = query.shape[1] != key.shape[1]
    outputs = [
        F.scaled_dot_product_attention(
            q, k, v, scale=scaling, dropout_p=dropout, is_causal=causal, enable_gqa=grouped
        )
        for q, k, v in zip(
            query.split(lengths, dim=2),
            key.split(lengths, dim=2),
            value.split(lengths, dim=2),
            strict=True,
        )
    ]
    out = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return out.transpose(1, 2), None


def _no_mask(*_: Any, **__: Any) -> None:
    """No dense mask: the boundaries take its place."""
    return None


def register() -> str:
    """Register the function with transformers.

    Returns:
        Its name, for `attn_implementation`.
    """
    ALL_ATTENTION_FUNCTIONS.register(NAME, varlen_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _no_mask)
    return NAME
