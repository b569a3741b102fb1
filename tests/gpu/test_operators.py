"""Norms and rotations on a device against those of transformers in float64 on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from operators import class_named

from flowtrain.models.rms_norm import use_own_norms
from flowtrain.models.rotary import Rotary, _rotate_in_float32
from flowtrain_core import cuda as core_cuda

pytestmark = pytest.mark.gpu

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
TOKENS, WIDTH = 300, 96


def error(mine: torch.Tensor, exact: torch.Tensor) -> float:
    exact = exact.detach()
    return float((mine.detach().cpu().double() - exact).norm() / exact.norm())


def check(inputs: dict[str, torch.Tensor], dtype: torch.dtype, on_device: Any, exact: Any) -> None:
    """Outputs and gradients of a function of some tensors, each once."""
    cuda = {k: v.to("cuda", dtype).requires_grad_() for k, v in inputs.items()}
    rounded = {k: v.detach().cpu().double().requires_grad_() for k, v in cuda.items()}
    outputs, expected = on_device(**cuda), exact(**rounded)
    seeds = [torch.randn_like(each) for each in expected]
    torch.autograd.backward(outputs, [seed.to("cuda", dtype) for seed in seeds])
    torch.autograd.backward(expected, [seed.to(dtype).double() for seed in seeds])
    pairs = [*zip(outputs, expected, strict=True)]
    pairs += [(cuda[name].grad, rounded[name].grad) for name in inputs]
    errors = [error(mine, theirs) for mine, theirs in pairs]
    print(dtype, errors)
    # Written so that a NaN fails.
    assert all(each <= TOLERANCE[dtype] for each in errors), errors


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_norm_is_that_of_the_host(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm: Any = class_named("Qwen3RMSNorm")(WIDTH).to("cuda", dtype)
    use_own_norms(norm)

    def on_device(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        norm._parameters["weight"] = weight
        return [norm(x)]

    def exact(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        root = (x.square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()
        return [x * root * weight]

    check(
        {"x": torch.randn(1, TOKENS, WIDTH), "weight": torch.randn(WIDTH)}, dtype, on_device, exact
    )


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


# Widths that allow accesses of 16 bytes, and others.
@pytest.mark.parametrize("head_dim", [64, 36])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rotations_are_those_of_the_host(
    dtype: torch.dtype, head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    rotated, kernel = [], core_cuda.rotate
    monkeypatch.setattr(
        core_cuda,
        "rotate",
        lambda q, k, name, *rest, **how: (rotated.append(name), kernel(q, k, name, *rest, **how)),
    )
    cos, sin = torch.rand(2, TOKENS, head_dim, dtype=torch.float64).sub(0.5).to(dtype).double()

    # As a decoder has them: tokens in front of heads in memory, and fewer keys than queries.
    def decoder(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        angles = (x.to("cuda", dtype)[None, None] for x in (cos, sin))
        heads_first = (x[None].transpose(1, 2) for x in (q, k))
        return tuple(x[0].transpose(0, 1) for x in Rotary.apply(*heads_first, *angles))

    # As a tower has them: parts of one tensor, and angles in float32.
    def tower(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        both = torch.stack([q, torch.cat([k, k], 1)], 1)
        angles = (x.to("cuda", torch.float32) for x in (cos, sin))
        out_q, out_k = _rotate_in_float32(*both.unbind(1), *angles)
        return out_q, out_k[:, :2]

    def exact(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return turned(q, cos[:, None], sin[:, None]), turned(k, cos[:, None], sin[:, None])

    inputs = {"q": torch.randn(TOKENS, 4, head_dim), "k": torch.randn(TOKENS, 2, head_dim)}
    check(inputs, dtype, decoder, exact)
    check(inputs, dtype, tower, exact)
    # By the kernel, in both passes of both, and not in copies of another dtype.
    assert rotated == [str(dtype).removeprefix("torch.")] * 4
