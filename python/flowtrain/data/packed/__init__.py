"""Packed batches for training loops that use a `DataLoader`."""

from flowtrain.data.packed.loader import PackedLoader
from flowtrain.data.packed.vlm import VlmCollator

__all__ = ["PackedLoader", "VlmCollator"]
