"""The gated MLPs of transformers with a backward pass of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cost.kept import kept_bytes
from operators import class_named, computed
from support import one_thread
from transformers import LlamaConfig

from flowtrain.models import swiglu
from flowtrain.models.swiglu import _MLPS, SwiGlu, use_own_mlps

_WIDTH, _INNER = 16, 40


def mlp_of(name: str, activation: str = "silu") -> Any:
    config = LlamaConfig(
        hidden_size=_WIDTH,
        intermediate_size=_INNER,
        hidden_act=activation,
        num_attention_heads=1,
    )
    return class_named(name)(config)


def results(mlp: Any, x: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    mlp.zero_grad()
    out = mlp(x)
    out.backward(gradient)
    assert x.grad is not None
    return [out.detach(), x.grad, *(p.grad for p in mlp.parameters())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(_MLPS))
def test_outputs_and_gradients_are_those_of_transformers_to_the_last_bit(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swiglu, "usable", lambda _: False)
    torch.manual_seed(0)
    mlp = mlp_of(name).to(dtype)
    x, gradient = (torch.randn(1, 30, _WIDTH).to(dtype) for _ in range(2))
    expected = results(mlp, x, gradient)
    use_own_mlps(mlp)
    assert "forward" in vars(mlp)
    assert all(map(torch.equal, results(mlp, x, gradient), expected))


def test_another_activation_is_left_alone() -> None:
    mlp = mlp_of("LlamaMLP", activation="gelu")
    use_own_mlps(mlp)
    assert "forward" not in vars(mlp)


def test_three_tensors_of_the_inner_width_are_kept() -> None:
    mlp = mlp_of("LlamaMLP").bfloat16()
    use_own_mlps(mlp)
    x = torch.randn(30, _WIDTH).bfloat16().requires_grad_()
    assert kept_bytes(lambda: mlp(x * 1)) == 30 * 2 * (_WIDTH + 3 * _INNER)


# Whole vectors and others; gates whose exponentials overflow or vanish.
@pytest.mark.parametrize("size", [64, 61])
def test_the_kernel_is_as_exact_as_the_operators(size: int) -> None:
    torch.manual_seed(0)
    gate = torch.cat([torch.randn(size - 6), torch.tensor([0.0, 30.0, -30.0, 200.0, -200.0, 1e-9])])
    up, gradient = torch.randn(size), torch.randn(size)
    exact = computed(SwiGlu.apply, [gate, up], gradient, torch.float64)
    with one_thread():
        found = computed(SwiGlu.apply, [gate, up], gradient, torch.float32)
    for own, reference in zip(found, exact, strict=True):
        torch.testing.assert_close(own.double(), reference, rtol=1e-6, atol=1e-6)
