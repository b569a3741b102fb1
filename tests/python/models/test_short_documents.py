"""Attention of short documents against torch's, one document at a time in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from flowtrain.models import short_documents
from flowtrain.models.documents import Documents
from flowtrain_core import _ops


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [(6, 2), (4, 4)], ids=str)
# Rows and scores that fill whole vectors of 16, and that do not.
@pytest.mark.parametrize("head_dim", [20, 32])
@pytest.mark.parametrize("lengths", [[1], [5, 16, 17, 40, 33, 1], [128, 3, 100]], ids=str)
def test_output_and_gradients_are_those_of_attention_in_float64(
    lengths: list[int], head_dim: int, heads: tuple[int, int], causal: bool
) -> None:
    torch.manual_seed(0)
    # As in models: heads beside each other in memory, values as a view of a wider tensor.
    wide = torch.randn(1, sum(lengths), heads[0] + 2 * heads[1], head_dim)
    inputs = wide.transpose(1, 2).split([heads[0], heads[1], heads[1]], dim=1)
    ours = [x.detach().requires_grad_() for x in inputs]
    out = short_documents.attend(*ours, Documents(lengths), scaling=None, causal=causal)
    of_out = torch.randn_like(out)
    out.backward(of_out)

    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = torch.cat(
        [
            F.scaled_dot_product_attention(*parts, is_causal=causal, enable_gqa=True)
            for parts in zip(*(x.split(lengths, dim=2) for x in exact), strict=True)
        ],
        dim=2,
    ).transpose(1, 2)
    expected.backward(of_out.double())
    for own, reference in zip(
        [out, *(x.grad for x in ours)], [expected, *(x.grad for x in exact)], strict=True
    ):
        assert own is not None and reference is not None
        torch.testing.assert_close(own.double(), reference, rtol=0, atol=5e-6)


def test_scores_of_any_size_have_finite_weights() -> None:
    query = torch.tensor([[1e4, -1e4, 30.0]]).T[None, None].contiguous()
    weights = torch.softmax((query[0, 0] @ query[0, 0].T).double(), -1)
    out = short_documents.attend(query, query, query, Documents([3]), scaling=1.0, causal=False)
    torch.testing.assert_close(out[0, :, 0].double(), weights @ query[0, 0].double())


def test_a_wrong_shape_is_refused() -> None:
    query = torch.zeros(1, 2, 6, 4)
    with pytest.raises(ValueError, match=r"v: must be float32 of shape \[2, 6, 4\]"):
        short_documents.attend(
            query, query, query[:, :1], Documents([6]), scaling=None, causal=True
        )


def test_arrays_are_filled_in_place_and_never_converted() -> None:
    rows, lengths = np.zeros((2, 6, 4), np.float32), np.array([6])
    call = (rows, rows, rows, lengths, 1.0, True)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        _ops.attention(*call, np.zeros_like(rows), np.zeros((2, 6)))  # type: ignore[arg-type]
    fixed = np.zeros_like(rows)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="out: must be writable"):
        _ops.attention(*call, fixed, np.zeros((2, 6), np.float32))
