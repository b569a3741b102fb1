"""A stand-in for the kernels of flash-attn-4 4.0.0b36, which computes on a CPU."""

from __future__ import annotations

import pytest
import torch

from flowtrain.models import flash4


class FlashAttention4:
    """The functions that `flash4.py` calls, as far as it uses them."""

    def __init__(self) -> None:
        self.forwards = 0

    def _flash_attn_fwd(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        softmax_scale: float,
        causal: bool,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        return_lse: bool,
    ) -> tuple[torch.Tensor | None, ...]:
        self.forwards += 1
        assert max_seqlen_q == max_seqlen_k == int(cu_seqlens_q.diff().max())
        assert torch.equal(cu_seqlens_q, cu_seqlens_k)
        scores = _scores(q, k, cu_seqlens_q, softmax_scale, causal)
        out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), _repeated(v, q))
        return out.contiguous(), scores.logsumexp(-1).float(), None, None, None

    def _flash_attn_bwd(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        dout: torch.Tensor,
        lse: torch.Tensor,
        *,
        softmax_scale: float,
        causal: bool,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dq: torch.Tensor,
        dk: torch.Tensor,
        dv: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        assert max_seqlen_q == max_seqlen_k == int(cu_seqlens_q.diff().max())
        scores = _scores(q, k, cu_seqlens_q, softmax_scale, causal)
        torch.testing.assert_close(lse, scores.logsumexp(-1).float())
        shares = scores.softmax(-1)
        of_shares = torch.einsum("qhd,khd->hqk", dout, _repeated(v, q))
        of_scores = shares * (of_shares - (dout * out).sum(-1).T[..., None]) * softmax_scale
        dq.copy_(torch.einsum("hqk,khd->qhd", of_scores, _repeated(k, q)))
        for x, by_head in (
            (dk, torch.einsum("hqk,qhd->khd", of_scores, q)),
            (dv, torch.einsum("hqk,qhd->khd", shares, dout)),
        ):
            x.copy_(by_head.unflatten(1, (x.shape[1], -1)).sum(2))
        return dq, dk, dv


def _scores(
    q: torch.Tensor, k: torch.Tensor, boundaries: torch.Tensor, scale: float, causal: bool
) -> torch.Tensor:
    """Scores of shape [heads, tokens, tokens]; -inf between documents."""
    tokens = torch.arange(q.shape[0])
    document = torch.searchsorted(boundaries[1:].long(), tokens, right=True)
    seen = document[:, None] == document
    if causal:
        seen &= tokens[:, None] >= tokens
    products = torch.einsum("qhd,khd->hqk", q, _repeated(k, q)) * scale
    return products.masked_fill(~seen, -torch.inf)


def _repeated(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Keys or values for each head of the queries."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


@pytest.fixture
def flash_attention_4(monkeypatch: pytest.MonkeyPatch) -> FlashAttention4:
    module = FlashAttention4()
    monkeypatch.setattr(flash4, "kernels", lambda: module)
    monkeypatch.setattr(flash4, "usable", lambda device: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    return module
