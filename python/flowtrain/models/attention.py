"""Attention over packed documents, at the cost of the documents one by one.

One function is registered with transformers' attention interface. The documents of the row are an
argument of the call (`documents`), never global state. No dense mask is built: for a packed row of
16 equal documents, masked attention would cost 16 times as much. One kernel computes all documents
in half precision on a CUDA device (`varlen.py`), and short documents in float32 on one core of a
CPU (`short_documents.py`); otherwise one call computes each run of documents of equal length.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from flowtrain.models import short_documents
from flowtrain.models.documents import Documents
from flowtrain.models.errors import ModelError
from flowtrain.models.varlen import usable, varlen

NAME = "flowtrain_varlen"

_CHANGE_THE_RESULT = ("sliding_window", "softcap", "s_aux")
"""Options for windows, capped scores and attention sinks."""


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
    documents: Documents | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of each document to itself.

    Args:
        module: The attention layer; its `is_causal` is the default of the argument.
        query: Shape [1, heads, tokens, head_dim].
        key: Shape [1, kv_heads, tokens, head_dim].
        value: Shape [1, kv_heads, tokens, head_dim].
        attention_mask: Must be None, as `documents` takes its place.
        scaling: Factor of the scores.
        dropout: Probability; 0 outside training.
        is_causal: Whether a token attends only to itself and the tokens before it.
        documents: Documents of the row. A non-causal call without them takes `cu_seq_lens_q` of the
            options, the boundaries of its documents, or is one document.
        options: Other options of transformers' attention. Those in `_CHANGE_THE_RESULT` must be
            None.

    Returns:
        Shape [1, tokens, heads, head_dim], and None for the weights.

    Raises:
        ModelError: A causal call has no documents, a call has a mask or a batch above 1, its
            documents are not those of the row, or its options need another kind of attention.
    """
    causal = bool(module.is_causal) if is_causal is None else is_causal
    if attention_mask is not None or query.shape[0] != 1:
        raise ModelError(
            f"{NAME}: attention_mask must be None and the batch 1 (got batch {query.shape[0]}); "
            "pack documents into one row and give their lengths in `documents`, and choose another "
            "attn_implementation for a vision tower (vision_config) that encodes tiles"
        )
    for name in _CHANGE_THE_RESULT:
        if options.get(name) is not None:
            raise ModelError(
                f"{NAME}: {name}={options[name]} of {type(module).__name__} is not supported; use "
                "a model whose layers all have full attention"
            )
    if documents is None:
        if causal:
            raise ModelError(
                f"{NAME}: a causal call needs `documents`; without it documents of the row would "
                "see each other"
            )
        boundaries = options.get("cu_seq_lens_q")
        lengths = [query.shape[2]] if boundaries is None else boundaries.diff().tolist()
        documents = Documents(lengths)
    if documents.num_tokens != query.shape[2]:
        raise ModelError(
            f"{NAME}: `documents` have {documents.num_tokens} tokens, but the row of "
            f"{type(module).__name__} has {query.shape[2]}; if they are those of the text, choose "
            "another attn_implementation for the vision tower (vision_config)"
        )
    # Of a single document too. For one torch may choose cuDNN, with which an H100 was idle for most
    # of a step whose images all had sizes of their own.
    if usable(query, dropout=dropout):
        return varlen(query, key, value, documents, scaling=scaling, causal=causal), None
    if short_documents.usable(query, documents, dropout=dropout):
        out = short_documents.attend(query, key, value, documents, scaling=scaling, causal=causal)
        return out, None
    grouped = query.shape[1] != key.shape[1]
    tokens = [count * length for count, length in documents.runs]
    outputs = []
    for (count, _), *run in zip(
        documents.runs, *(x.split(tokens, dim=2) for x in (query, key, value)), strict=True
    ):
        q, k, v = run if count == 1 else (_as_batch(x, count) for x in run)
        out = F.scaled_dot_product_attention(
            q, k, v, scale=scaling, dropout_p=dropout, is_causal=causal, enable_gqa=grouped
        ).transpose(1, 2)
        outputs.append(out if count == 1 else out.flatten(0, 1)[None])
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1), None


# torch would compile it, and the layer around it, again for each number of documents.
_NOT_COMPILED = torch.compiler.disable(varlen_attention)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    *args: Any,
    dropout: float = 0.0,
    documents: Documents | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """`varlen_attention`, of which torch.compile traces a call that is one kernel."""
    one_kernel = documents is not None and usable(query, dropout=dropout)
    call = varlen_attention if one_kernel else _NOT_COMPILED
    return call(module, query, *args, dropout=dropout, documents=documents, **options)


def _as_batch(run: torch.Tensor, count: int) -> torch.Tensor:
    """View [1, heads, count * length, head_dim] as [count, heads, length, head_dim]."""
    return run[0].unflatten(1, (count, -1)).transpose(0, 1)


def register() -> str:
    """Register the function with transformers.

    It has no function of masks there: transformers then makes none. With one, it would look for
    documents in the positions, for which the host waits for the device.

    Returns:
        Its name, for `attn_implementation`.
    """
    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
    return NAME
