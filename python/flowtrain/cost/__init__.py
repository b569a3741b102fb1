"""Cost of a sample in FLOPs and of a row in bytes, and the peak FLOP/s of a device."""

from flowtrain.cost.accelerators import ACCELERATORS, Accelerator
from flowtrain.cost.activations import LayerBytes, layer_bytes
from flowtrain.cost.flops import ModuleFlops, train_flops
from flowtrain.cost.layers import (
    Counts,
    ForwardFlops,
    Layer,
    LayerFlops,
    Product,
    Saved,
    layer_flops,
)
from flowtrain.cost.states import StateBytes, state_bytes

__all__ = [
    "ACCELERATORS",
    "Accelerator",
    "Counts",
    "ForwardFlops",
    "Layer",
    "LayerBytes",
    "LayerFlops",
    "ModuleFlops",
    "Product",
    "Saved",
    "StateBytes",
    "layer_bytes",
    "layer_flops",
    "state_bytes",
    "train_flops",
]
