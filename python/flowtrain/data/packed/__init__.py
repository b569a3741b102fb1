"""Packing for training loops that have a `DataLoader`."""

from flowtrain.data.packed.loader import PackedLoader

__all__ = ["PackedLoader"]
