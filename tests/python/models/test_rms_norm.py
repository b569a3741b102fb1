"""The norms of transformers with a backward pass of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cost.kept import kept_bytes
from operators import class_named, computed
from support import one_thread

from flowtrain.models import rms_norm
from flowtrain.models.rms_norm import _NORMS, RmsNorm, use_own_norms

_WIDTH = 48


@pytest.fixture
def without_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rms_norm, "usable", lambda _: False)


def norm_of(name: str, dtype: torch.dtype) -> Any:
    """A norm of transformers with drawn weights."""
    norm = class_named(name)(_WIDTH)
    torch.nn.init.normal_(norm.weight, 1, 0.1)
    return norm.to(dtype)


def results(norm: Any, x: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    norm.weight.grad = None
    out = norm(x)
    out.backward(gradient)
    assert x.grad is not None
    return [out.detach(), x.grad, norm.weight.grad]


@pytest.mark.usefixtures("without_kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(_NORMS))
def test_outputs_and_gradients_are_those_of_transformers_to_the_last_bit(
    name: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    norm = norm_of(name, dtype)
    for shape in ((1, 30, _WIDTH), (1, 30, 5, _WIDTH), (30, _WIDTH)):
        x, gradient = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
        expected = results(norm, x, gradient)
        use_own_norms(norm)
        assert all(map(torch.equal, results(norm, x, gradient), expected))
        del norm.forward


# Rows of whole vectors and others, and more of them than are added up together.
@pytest.mark.parametrize("width", [64, 20])
def test_the_kernel_is_as_exact_as_the_operators(width: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 70, width), torch.randn(width)
    gradient = torch.randn_like(x)

    def norm(*inputs: torch.Tensor) -> Any:
        return RmsNorm.apply(*inputs, 1e-6)

    exact = computed(norm, [x, weight], gradient, torch.float64)
    with one_thread():
        found = computed(norm, [x, weight], gradient, torch.float32)
    for own, reference in zip(found, exact, strict=True):
        torch.testing.assert_close(own.double(), reference, rtol=2e-6, atol=4e-6)


@pytest.mark.usefixtures("without_kernel")
def test_a_frozen_norm_passes_the_same_gradient_on() -> None:
    norm = norm_of("Qwen3RMSNorm", torch.float32)
    x, gradient = torch.randn(30, _WIDTH), torch.randn(30, _WIDTH)
    expected = results(norm, x, gradient)[1]
    use_own_norms(norm)
    norm.weight.requires_grad_(False)
    x.requires_grad_()
    norm(x).backward(gradient)
    assert x.grad is not None
    assert torch.equal(x.grad, expected)


def test_a_norm_in_bfloat16_keeps_two_bytes_a_value_and_four_a_row() -> None:
    norm = norm_of("LlamaRMSNorm", torch.bfloat16)
    x = torch.randn(30, _WIDTH).bfloat16().requires_grad_()
    use_own_norms(norm)
    assert kept_bytes(lambda: norm(x * 1)) == 30 * (2 * _WIDTH + 4)
