"""Cost of a sample in FLOPs, and the peak FLOP/s of a device."""

from flowtrain.cost.flops import ModuleFlops, train_flops

__all__ = ["ModuleFlops", "train_flops"]
