"""Operators of transformers, and their results and gradients, for tests of FlowTrain's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

_FILES = (
    "internvl",
    "llama",
    "mistral",
    "qwen2",
    "qwen2_5_omni",
    "qwen2_5_vl",
    "qwen3",
    "qwen3_vl",
    "qwen3_vl_moe",
)


def module_of(file: str) -> Any:
    """The module of transformers with the classes of a model."""
    return importlib.import_module(f"transformers.models.{file}.modeling_{file}")


def class_named(name: str) -> Any:
    """The class of this name in the first of the modules that has it."""
    for file in _FILES:
        if hasattr(module_of(file), name):
            return getattr(module_of(file), name)
    raise AssertionError(f"transformers has no {name}")


def computed(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    gradient: torch.Tensor,
    dtype: torch.dtype,
) -> list[torch.Tensor]:
    """The result of a function in a dtype, and the gradients of its inputs."""
    own = [x.to(dtype).requires_grad_() for x in inputs]
    out = function(*own)
    out.backward(gradient.to(dtype))
    return [out.detach(), *(x.grad for x in own if x.grad is not None)]
