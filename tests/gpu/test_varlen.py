"""One kernel for all documents against each document alone, with gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from flowtrain.models import flash4
from flowtrain.models.attention import varlen_attention
from flowtrain.models.documents import Documents
from flowtrain.models.varlen import usable

pytestmark = [
    pytest.mark.gpu,
    # Of flash-attn-4 and its compiler, at the first use.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]

LENGTHS = [1, 130, 17, 64, 300]
HEADS = 8
HEAD_DIMS = [64, 80, 128]
# Inputs are the same rounded numbers; sums and outputs differ by a few times the unit roundoff,
# 2**-9 and 2**-12.
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3}


def one_by_one(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool
) -> torch.Tensor:
    """Attention in float64, document by document, shape [1, tokens, heads, head_dim]."""
    parts = zip(*(x.split(LENGTHS, dim=2) for x in (query, key, value)), strict=True)
    return torch.cat(
        [
            F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
            for q, k, v in parts
        ],
        dim=2,
    ).transpose(1, 2)


@pytest.fixture(params=["torch", "flash-attn-4"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel under test."""
    if request.param == "torch":
        monkeypatch.setattr(flash4, "usable", lambda device: False)
    elif not flash4.usable(torch.device("cuda")):
        pytest.skip("flash-attn-4 is not installed, or has no kernels for this device")


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [2, 8])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_outputs_and_gradients_equal_those_of_each_document_alone(
    dtype: torch.dtype, causal: bool, kv_heads: int, head_dim: int
) -> None:
    torch.manual_seed(0)
    tokens = sum(LENGTHS)
    packed = [
        torch.randn(1, heads, tokens, head_dim, device="cuda", dtype=dtype).requires_grad_()
        for heads in (HEADS, kv_heads, kv_heads)
    ]
    exact = [x.detach().double().requires_grad_() for x in packed]
    assert usable(packed[0], dropout=0.0), "the kernel would not be tested"
    documents = Documents(LENGTHS)
    out, _ = varlen_attention(
        torch.nn.Module(), *packed, None, is_causal=causal, documents=documents
    )
    expected = one_by_one(*exact, causal)
    seed = torch.randn_like(expected)
    out.backward(seed.to(dtype))
    expected.backward(seed.to(dtype).double())
    pairs = {"out": (out, expected)}
    for name, mine, theirs in zip(("query", "key", "value"), packed, exact, strict=True):
        pairs[f"gradient of {name}"] = (mine.grad, theirs.grad)
    errors = {
        name: float((mine.detach().double() - theirs.detach()).norm() / theirs.detach().norm())
        for name, (mine, theirs) in pairs.items()
    }
    print(dtype, "causal" if causal else "full", kv_heads, head_dim, errors)
    # Written so that a NaN fails.
    assert all(error <= TOLERANCE[dtype] for error in errors.values()), errors
