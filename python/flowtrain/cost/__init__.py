"""Cost of a sample in FLOPs, by part and by layer, and the peak FLOP/s of a device."""

from flowtrain.cost.flops import ModuleFlops, train_flops
from flowtrain.cost.layers import Counts, ForwardFlops, Layer, LayerFlops, Product, layer_flops

__all__ = [
    "Counts",
    "ForwardFlops",
    "Layer",
    "LayerFlops",
    "ModuleFlops",
    "Product",
    "layer_flops",
    "train_flops",
]
