"""What a sample costs: analytic FLOPs, and the peak they are compared with."""

from flowtrain.cost.flops import ModuleFlops, sample_flops, train_flops

__all__ = ["ModuleFlops", "sample_flops", "train_flops"]
