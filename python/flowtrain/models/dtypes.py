"""Dtypes of the configuration, as torch names them."""

from __future__ import annotations

import torch

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}
