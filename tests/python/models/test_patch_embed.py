"""Patch embeddings as a product, against the convolutions of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flowtrain.models.patch_embed import _is_product, linear_patches
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, write_tiny_model


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_outputs_and_gradients_are_those_of_the_convolution(family: str, tmp_path: Path) -> None:
    write_tiny_model(tmp_path, SMALLEST, family=family)
    encoder = family_for(tmp_path).build(
        "encoder", weights=None, seed=0, dtype=torch.float64, device=torch.device("cpu")
    )
    [embedding] = [m for m in encoder.modules() if _is_product(getattr(m, "proj", None))]
    convolution = embedding.proj
    assert isinstance(convolution, torch.nn.Conv3d)
    patches = torch.randn(12, convolution.weight[0].numel(), dtype=torch.float64)
    results = []
    for out in (embedding(patches), linear_patches(convolution, patches)):
        convolution.zero_grad()
        out.square().sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in convolution.parameters())])
    for mine, theirs in zip(*reversed(results), strict=True):
        torch.testing.assert_close(mine, theirs)
