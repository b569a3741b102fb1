from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from flowtrain.models import ModelError
from flowtrain.models.attention import varlen_attention
from flowtrain.models.documents import Documents


def test_attention_costs_as_much_as_the_documents_one_by_one() -> None:
    # In float64, which the kernel for short documents leaves to torch's.
    query = torch.randn(1, 4, 64, 8, dtype=torch.float64)
    key = value = torch.randn(1, 2, 64, 8, dtype=torch.float64)
    layer = torch.nn.Module()
    layer.is_causal = True  # type: ignore[assignment]

    def flops(lengths: list[int]) -> int:
        documents = Documents(lengths)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            varlen_attention(layer, query, key, value, None, documents=documents)
        return counter.get_total_flops()

    assert flops([16] * 4) * 4 == flops([64]) > 0


def test_attention_calls_the_kernel_once_for_documents_of_equal_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    lengths = [5, 3, 3, 3, 2, 5, 5]
    query = torch.randn(1, 4, sum(lengths), 8, dtype=torch.float64)
    key, value = torch.randn(2, 1, 2, sum(lengths), 8, dtype=torch.float64)
    layer = torch.nn.Module()
    alone = torch.cat(
        [
            varlen_attention(layer, *parts, None, is_causal=True, documents=Documents([n]))[0]
            for n, *parts in zip(
                lengths, *(x.split(lengths, dim=2) for x in (query, key, value)), strict=True
            )
        ],
        dim=1,
    )
    calls = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def counted_kernel(q: torch.Tensor, *rest: torch.Tensor, **options: Any) -> torch.Tensor:
        calls.append(tuple(q.shape))
        return kernel(q, *rest, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted_kernel)
    together, _ = varlen_attention(
        layer, query, key, value, None, is_causal=True, documents=Documents(lengths)
    )
    assert calls == [(1, 4, 5, 8), (3, 4, 3, 8), (1, 4, 2, 8), (2, 4, 5, 8)]
    torch.testing.assert_close(together, alone)


def test_a_causal_call_without_documents_is_refused() -> None:
    layer = torch.nn.Module()
    layer.is_causal = True  # type: ignore[assignment]
    rows = torch.randn(1, 2, 4, 8)
    with pytest.raises(ModelError, match="documents of the row would see each other"):
        varlen_attention(layer, rows, rows, rows, None)


@pytest.mark.parametrize("option", [{"sliding_window": 4}, {"softcap": 50.0}])
def test_options_that_change_the_result_are_refused(option: dict[str, Any]) -> None:
    rows = torch.randn(1, 2, 4, 8)
    with pytest.raises(ModelError, match=f"{next(iter(option))}=.* of Module is not supported"):
        varlen_attention(
            torch.nn.Module(),
            rows,
            rows,
            rows,
            None,
            is_causal=True,
            documents=Documents([4]),
            sliding_window=option.get("sliding_window"),
            softcap=option.get("softcap"),
        )
