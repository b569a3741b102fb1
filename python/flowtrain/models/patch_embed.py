"""Patch embeddings of transformers as a matrix product on a CUDA device.

The towers of Qwen-VL embed patches by a convolution whose windows neither overlap nor leave a gap,
which is a product with the flattened weight. cuDNN has no fast kernel for such a convolution in
three dimensions in bfloat16, and takes up to seconds for an image.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F


def use_linear_patches(model: torch.nn.Module) -> None:
    """Let the patch embeddings of a model of transformers compute a product; others are left alone.

    On a CPU they stay as they are. Weights keep their names and shapes.
    """
    for module in model.modules():
        if _is_product(getattr(module, "proj", None)):
            module.forward = MethodType(_forward, module)


def _is_product(convolution: Any) -> bool:
    return (
        isinstance(convolution, torch.nn.Conv3d)
        and convolution.stride == convolution.kernel_size
        and convolution.padding == (0, 0, 0)
        and convolution.dilation == (1, 1, 1)
        and convolution.groups == 1
    )


def _forward(embedding: Any, patches: torch.Tensor) -> torch.Tensor:
    if not patches.is_cuda:
        out: torch.Tensor = type(embedding).forward(embedding, patches)
        return out
    return linear_patches(embedding.proj, patches)


def linear_patches(convolution: torch.nn.Conv3d, patches: torch.Tensor) -> torch.Tensor:
    """Embeddings of patches, shape [patches, width].

    Args:
        convolution: Whose windows are the patches.
        patches: All values of each patch, shape [patches, values].
    """
    weight = convolution.weight.flatten(1)
    return F.linear(patches.to(weight.dtype), weight, convolution.bias)
