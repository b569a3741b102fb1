"""The dtypes of a run, by their names in the configuration."""

from __future__ import annotations

from typing import Literal

Dtype = Literal["float32", "float64", "bfloat16"]

ITEMSIZES: dict[Dtype, int] = {"float32": 4, "float64": 8, "bfloat16": 2}
"""Bytes of a value."""
