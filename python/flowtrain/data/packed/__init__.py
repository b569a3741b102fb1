"""Packed batches for training loops that use a `DataLoader`."""

from flowtrain.data.packed.loader import PackedLoader

__all__ = ["PackedLoader"]
