"""The dtypes of a run, as torch names them."""

from __future__ import annotations

import torch

from flowtrain.config.schema import RunConfig

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}


def compute_dtype(config: RunConfig) -> torch.dtype:
    """Dtype of weights in the passes, and of activations."""
    return DTYPES[config.model.dtype]
