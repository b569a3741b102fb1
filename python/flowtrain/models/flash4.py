"""Attention of packed documents by FlashAttention-4, where the package `flash-attn-4` is installed.

Both passes are operators of torch, so that selective recomputation can keep what the first returns,
and torch.compile traces neither. They call the two functions that torch's own
`activate_flash_attention_impl("FA4")` calls; with present releases of both, that fails.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any

import torch

from flowtrain.models.errors import ModelError

# The kernels have backward passes for Hopper (9) and Blackwell (10).
_CAPABILITIES = (9, 10)


@cache
def kernels() -> Any | None:
    """The module of the kernels; None if the package is not installed.

    Raises:
        ModelError: The package is there, but cannot be imported.
    """
    # `flash_attn` alone may be the package of FlashAttention-2.
    if importlib.util.find_spec("flash_attn") is None:
        return None
    if importlib.util.find_spec("flash_attn.cute") is None:
        return None
    try:
        return importlib.import_module("flash_attn.cute.interface")
    except ImportError as error:
        raise ModelError(
            f"flash-attn-4 is installed, but cannot be imported ({error}); install what it needs "
            "(pip install 'flash-attn-4[cu13]'), or uninstall it to compute attention by torch"
        ) from error


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
@cache
def usable(device: torch.device) -> bool:
    """Whether a device has these kernels, and the package is installed."""
    if device.type != "cuda":
        return False
    major, _ = torch.cuda.get_device_capability(device)
    return major in _CAPABILITIES and kernels() is not None


@torch.library.custom_op("flowtrain::flash4", mutates_args=())
def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    boundaries: torch.Tensor,
    longest: int,
    scaling: float,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each document to itself.

    Args:
        query: Shape [tokens, heads, head_dim], bfloat16 or float16.
        key: Shape [tokens, kv_heads, head_dim].
        value: Shape [tokens, kv_heads, head_dim].
        boundaries: Boundaries of the documents from 0 to tokens, int32, shape [documents + 1].
        longest: Tokens of the longest document.
        scaling: Factor of the scores.
        causal: Whether a token attends only to itself and the tokens before it.

    Returns:
        Shape [tokens, heads, head_dim], and the logarithms of the sums of the softmax, float32,
        shape [heads, tokens], which have no gradient.
    """
    module: Any = kernels()
    out, log_sums, *_ = module._flash_attn_fwd(
        query,
        key,
        value,
        softmax_scale=scaling,
        causal=causal,
        cu_seqlens_q=boundaries,
        cu_seqlens_k=boundaries,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        return_lse=True,
    )
    return out, log_sums


@attend.register_fake
def _(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, heads, _ = query.shape
    return query.new_empty(query.shape), query.new_empty(heads, tokens, dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    *tensors, ctx.longest, ctx.scaling, ctx.causal = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


@torch.library.custom_op("flowtrain::flash4_backward", mutates_args=())
def _gradients(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    boundaries: torch.Tensor,
    out: torch.Tensor,
    log_sums: torch.Tensor,
    longest: int,
    scaling: float,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    module: Any = kernels()
    of_query, of_key, of_value = (torch.empty_like(x) for x in (query, key, value))
    module._flash_attn_bwd(
        query,
        key,
        value,
        out,
        gradient,
        log_sums,
        softmax_scale=scaling,
        causal=causal,
        cu_seqlens_q=boundaries,
        cu_seqlens_k=boundaries,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        dq=of_query,
        dk=of_key,
        dv=of_value,
    )
    return of_query, of_key, of_value


@_gradients.register_fake
def _(
    _: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[Any, ...]:
    given = _gradients(gradient, *ctx.saved_tensors, ctx.longest, ctx.scaling, ctx.causal)
    return *given, None, None, None, None


attend.register_autograd(_backward, setup_context=_keep)
KERNEL = torch.ops.flowtrain.flash4.default
