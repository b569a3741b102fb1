"""The dtypes of a run, as torch names them."""

from __future__ import annotations

import torch

from flowtrain.config.schema import RunConfig

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}


def stored_dtype(config: RunConfig) -> torch.dtype:
    """Dtype of weights that the optimizer steps, of their gradients and moments, and in files."""
    return DTYPES[config.model.dtype]


def compute_dtype(config: RunConfig) -> torch.dtype:
    """Dtype of weights in the passes, and of activations."""
    return DTYPES[config.model.pass_dtype]


def reduce_dtype(config: RunConfig) -> torch.dtype:
    """Dtype in which gradients are summed over ranks."""
    return DTYPES[config.optim.reduce_dtype or config.model.dtype]


def pool_dtype(config: RunConfig) -> torch.dtype:
    """Dtype of rows and of their gradients in the pool."""
    return DTYPES[config.pool.dtype or config.model.pass_dtype]
