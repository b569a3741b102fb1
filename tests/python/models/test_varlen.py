"""The call of torch's varlen attention, which a plain function replaces here."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.attention.varlen
import torch.nn.functional as F
from flash_attention_4 import FlashAttention4, flash_attention_4
from torch.utils.checkpoint import checkpoint

from flowtrain.models import ModelError, flash4, recompute, varlen
from flowtrain.models.attention import varlen_attention
from flowtrain.models.documents import Documents

__all__ = ["flash_attention_4"]

LENGTHS = [3, 1, 7]


def kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> torch.Tensor:
    """As documented in torch 2.11, without grouped heads."""
    assert query.shape[1] == key.shape[1] == value.shape[1]
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    lengths = cu_seq_q.diff().tolist()
    assert max_q == max_k == max(lengths)
    parts = zip(*(x.split(lengths) for x in (query, key, value)), strict=True)
    out = [
        F.scaled_dot_product_attention(
            *(x.transpose(0, 1)[None] for x in part), scale=scale, is_causal=window_size == (-1, 0)
        )[0].transpose(0, 1)
        for part in parts
    ]
    return torch.cat(out)


def grouped_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *rest: Any,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> torch.Tensor:
    """As documented in torch 2.13."""
    assert enable_gqa == (query.shape[1] != key.shape[1])
    repeats = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    return kernel(query, key, value, *rest, scale=scale, window_size=window_size)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_flash_attention_4_has_the_gradients_of_each_document_alone(
    causal: bool, kv_heads: int, flash_attention_4: FlashAttention4
) -> None:
    torch.manual_seed(0)
    tokens, documents = sum(LENGTHS), Documents(LENGTHS)
    inputs = [
        torch.randn(1, heads, tokens, 8, requires_grad=True) for heads in (4, kv_heads, kv_heads)
    ]
    seed = torch.randn(1, tokens, 4, 8)
    got = varlen.varlen(*inputs, documents, scaling=0.3, causal=causal)
    wanted, _ = varlen_attention(
        torch.nn.Module(), *inputs, None, scaling=0.3, is_causal=causal, documents=documents
    )
    torch.testing.assert_close(got, wanted)
    for mine, theirs in zip(
        torch.autograd.grad(got, inputs, seed),
        torch.autograd.grad(wanted, inputs, seed),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_selective_recomputation_keeps_what_flash_attention_4_returns(
    flash_attention_4: FlashAttention4,
) -> None:
    inputs = [torch.randn(1, 2, sum(LENGTHS), 8, requires_grad=True) for _ in range(3)]

    def layer(*inputs: torch.Tensor) -> torch.Tensor:
        doubled = [2 * x for x in inputs]
        return varlen.varlen(*doubled, Documents(LENGTHS), scaling=None, causal=True)

    out = checkpoint(layer, *inputs, use_reentrant=False, context_fn=recompute.attention_kept())
    out.sum().backward()
    assert flash_attention_4.forwards == 1


def test_a_flash_attention_4_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "flash_attn" / "cute"
    package.mkdir(parents=True)
    (package / "interface.py").write_text("import cutlass_that_is_missing")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModelError, match="cutlass_that_is_missing.*or uninstall it"):
        flash4.kernels.__wrapped__()


@pytest.mark.parametrize("function", [kernel, grouped_kernel])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_the_kernel_call_gives_attention_within_each_document(
    function: Any, causal: bool, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    tokens = sum(LENGTHS)
    query = torch.randn(1, 4, tokens, 8)
    key, value = torch.randn(2, 1, kv_heads, tokens, 8)
    documents = Documents(LENGTHS)
    layer = torch.nn.Module()
    expected, _ = varlen_attention(
        layer, query, key, value, None, scaling=0.3, is_causal=causal, documents=documents
    )
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", function)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    varlen._parameters.cache_clear()
    got = varlen.varlen(query, key, value, documents, scaling=0.3, causal=causal)
    varlen._parameters.cache_clear()
    torch.testing.assert_close(got, expected)


def test_this_torch_has_the_parameters_that_the_call_uses() -> None:
    varlen._parameters.cache_clear()
    assert varlen._parameters() >= {"window_size", "scale", "max_q", "max_k"}


def test_the_kernel_is_not_used_for_tensors_on_the_host() -> None:
    assert not varlen.usable(torch.randn(1, 2, 4, 8, dtype=torch.bfloat16), dropout=0.0)


def test_selective_recomputation_keeps_what_the_operator_of_torch_returns() -> None:
    found = varlen.kernel()
    assert found is not None
    # It has no public name: another one would be computed again, and nothing would say so.
    name = found._schema.name.replace("::", ".")
    assert f"torch.ops.{name}(" in inspect.getsource(torch.nn.attention.varlen.varlen_attn)
